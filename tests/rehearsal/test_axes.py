"""Ranks that share more than data, through the command: rehearsed ranks beside real ones on the CPU, every
category at every moment, every storage and every message; how ranks are divided, and what is refused."""

import json
from collections import Counter

import pytest
from helpers import launch, preload, rehearse
from helpers.tools.forecast import advising
from helpers.tools.forecast.command_line import main
from helpers.tools.measure.operations import Message
from helpers.tools.rehearsal.axes import Axes
from helpers.tools.rehearsal.of_transformers import build_transformers
from tests.rehearsal import cases, divided
from tests.rehearsal.divided import ask, trained

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 176}
SMALL |= {"vocab_size": 256, "max_position_embeddings": 64, "num_key_value_heads": 2}
LLAMA = SMALL | {"model_type": "llama"}
TIED = LLAMA | {"tie_word_embeddings": True}
QWEN3 = SMALL | {"model_type": "qwen3", "head_dim": 16}
MISTRAL = SMALL | {"model_type": "mistral"}
# 3 key-value heads on 4 ranks: the last has no head
UNEVEN = LLAMA | {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96, "vocab_size": 257}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500, "n_positions": 64}

SMALLEST = 256  # bytes of a norm of width 64, the smallest weight of most of these models


def keys(stage=0, tensor=1, **more):
    """DeepSpeed's configuration of a small case."""
    return divided.keys(stage, tensor_parallel={"autotp_size": tensor}, **more)


# --- beside real ranks


REAL = {  # name: (a model, DeepSpeed's configuration, ranks, the ranks that are rehearsed)
    "Llama, stage 1": (LLAMA, keys(1, 2), 4, (1, 2)),
    "Qwen3, stage 2": (QWEN3, keys(2, 2), 4, (3,)),
    "Mistral, stage 3": (MISTRAL, keys(3, 2), 4, (3,)),
    "tied embeddings, stage 0": (TIED, keys(0, 2), 2, (1,)),
    "heads that cannot be divided, stage 1": (UNEVEN, keys(1, 4), 4, (0, 3)),
}


@pytest.fixture(scope="module")
def libraries():
    preload("transformers.LlamaForCausalLM")


def compare(real, rehearsed):
    """Every figure is equal but for one thing: before its first step AutoTP sends the batch as a pickled
    object, in two messages (its length, its bytes), and a rehearsal has none to send."""
    different = cases.differences(real, rehearsed)
    sent, rehearsed_sent = (set(messages) for messages in different.pop("messages"))
    (length, _), *pickled = sorted((message[1], message) for message in sent - rehearsed_sent)
    assert length == 8 and len(pickled) <= 1 and rehearsed_sent <= sent
    different = {what: figures for what, figures in different.items() if "storage" not in what}
    assert different == {}
    mine, other = (Counter(report["storages"]) for report in (real, rehearsed))
    assert other - mine == Counter()
    more = mine - other
    assert any((born, died) == (0, 0) for _, _, born, died in more), "the batch, before the first snapshot"
    # On a busy machine a real rank may hold something small a moment longer, between two snapshots.
    assert all((born, died) == (0, 0) or (born == died and size <= SMALLEST) for size, _, born, died in more)
    assert along(real) == along(rehearsed) and any("tensor" in what for what in along(real))


def along(report):
    """{"operation, axis": bytes sent} without broadcasts, of which the pickled batch is one."""
    return {what: size for what, size in report["sent"].items() if "broadcast" not in what}


@pytest.mark.ranks
@pytest.mark.parametrize("name", REAL)
def test_every_figure_is_that_of_real_ranks(name, libraries):
    model, config, ranks, rehearsed_ranks = REAL[name]
    asked = ask(model, config, ranks)
    real = launch(trained, ranks, {"asked": asked}, device="cpu")
    for rank in rehearsed_ranks:
        compare(real[rank], rehearse(trained, ranks, rank, {"asked": asked}))


@pytest.mark.ranks
def test_another_degree_would_be_noticed(libraries):
    one, other = (rehearse(trained, 4, arguments={"asked": ask(LLAMA, keys(1, size), 4)}) for size in (2, 4))
    assert cases.differences(one, one) == {}
    assert {"storage", "messages"} <= {what.split()[0] for what in cases.differences(one, other)}


# --- how ranks are divided


@pytest.mark.parametrize(
    "group, axis",
    [((0, 1, 2, 3), "tensor"), ((4, 5, 6, 7), "tensor"), ((1, 5), "data"), (tuple(range(8)), "all ranks")],
)
def test_a_message_belongs_to_an_axis(group, axis):
    assert Axes(data=2, tensor=4).along(Message("all_reduce", 8, group)) == axis


def test_ranks_without_another_axis_are_named_as_before():
    assert str(Axes(data=1024)) == "1,024 ranks"
    assert str(Axes(2, 4)) == "8 ranks = 2 data × 4 tensor"


def test_the_last_of_those_that_share_a_matrix_is_looked_at_where_it_has_less():
    def different(axes, first, stage):
        whole = {"sizes": [40, 60, 100], "expert_sizes": [], "whole": [first, 60, 400]}
        return axes.most_different(whole, stage)

    assert different(Axes(2, 4), 160, stage=0) == [0]
    assert different(Axes(2, 4), 159, stage=0) == [0, 3]
    replicas = different(Axes(16, 4), 160, stage=2)
    assert len(replicas) > 1 and all(rank % 4 == 0 for rank in replicas)


@pytest.mark.parametrize(
    "sizes, micro_batch, accumulation, sequences",
    [
        ({"train_batch_size": 16}, 4, 1, 8),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 2}, 2, 2, 8),
        ({"train_micro_batch_size_per_gpu": 3}, 3, 1, None),
    ],
)
def test_batches_are_counted_as_deepspeed_counts_them_and_said_as_they_are(
    sizes, micro_batch, accumulation, sequences
):
    """DeepSpeed's `train_batch_size` counts ranks that share their data."""
    config = {"tensor_parallel": {"autotp_size": 2}} | sizes
    asked = ask(LLAMA, config, 4)
    assert (asked.micro_batch, asked.accumulation) == (micro_batch, accumulation)
    said = [note for note in asked.notes if f"a step has {sequences} different sequences" in note]
    assert len(said) == (sequences is not None)


def batch_sizes(config):
    import deepspeed
    from transformers import AutoConfig

    model = build_transformers(AutoConfig.for_model(**LLAMA))
    engine, *_ = deepspeed.initialize(model=model, config=config)
    return engine.train_batch_size(), engine.train_micro_batch_size_per_gpu(), engine.dp_world_size


@pytest.mark.ranks
def test_deepspeed_counts_ranks_that_share_their_data(libraries):
    config = {"train_batch_size": 16, "tensor_parallel": {"autotp_size": 2}}
    assert launch(batch_sizes, 4, {"config": config}, device="cpu") == [(16, 4, 2)] * 4


REFUSED = [  # a model, DeepSpeed's configuration, ranks, what is said
    (LLAMA, keys(1, 4), 6, "tensor_parallel.autotp_size 4 does not divide 6 ranks"),
    (
        GPT2,
        keys(1, 2),
        2,
        "DeepSpeed's AutoTP does not divide GPT2LMHeadModel: AutoTP not supported for model",
    ),
    ({"model_type": "phi3"}, keys(1, 2), 2, "does not divide Phi3ForCausalLM: HuggingFace tp_plan contains"),
    (LLAMA, keys(3, 4), 4, "2 of 4 ranks would have no part of its 2 key-value heads"),
    (LLAMA, keys(0, 2, train_batch_size=8), 4, "train_batch_size is not equal to"),
]


@pytest.mark.parametrize("model, config, ranks, words", REFUSED, ids=[words[:40] for *_, words in REFUSED])
def test_what_cannot_be_divided_is_refused(model, config, ranks, words):
    with pytest.raises(ValueError) as refused:
        ask(model, config, ranks)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_advice_keeps_the_axes():
    asked = ask(LLAMA, keys(1, 2), 4)
    assert {str(change.of(asked).axes) for change in advising.changes(asked)} == {
        f"{ranks} ranks = {ranks // 2} data × 2 tensor" for ranks in (4, 8, 16, 32)
    }


@pytest.mark.ranks
def test_the_command_names_the_axes_and_what_is_sent_along_each(tmp_path, capsys):
    (tmp_path / "model.json").write_text(json.dumps(UNEVEN))
    (tmp_path / "ds.json").write_text(json.dumps(keys(1, 4)))
    files = ("--model", str(tmp_path / "model.json"), "--deepspeed", str(tmp_path / "ds.json"))
    assert main([*files, "--ranks", "8", "--sequence", "16"]) == 0
    said, _ = capsys.readouterr()
    assert "ZeRO stage 1, 8 ranks = 2 data × 4 tensor, 2 x 16 tokens" in said
    columns = next(line for line in said.splitlines() if line.startswith("GB "))
    assert columns.split()[1:5] == ["rank", "0", "rank", "3"], "the last has no head of attention"
    assert "all_reduce, tensor" in said and "all_reduce, data" in said
