"""DeepSpeed's Ulysses through the command: rehearsed ranks beside real ones on the CPU."""

import json
import re

import pytest
from helpers import launch, preload, rehearse
from helpers.tools.forecast import advising
from helpers.tools.forecast.command_line import main
from helpers.tools.measure.operations import Message
from helpers.tools.rehearsal.axes import Axes
from helpers.tools.rehearsal.fitting import two_steps
from tests.rehearsal import cases, divided
from tests.rehearsal.divided import ask, trained

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 176}
SMALL |= {"vocab_size": 256, "max_position_embeddings": 64, "num_key_value_heads": 2}
LLAMA = SMALL | {"model_type": "llama"}
QWEN3 = SMALL | {"model_type": "qwen3", "head_dim": 16}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500, "n_positions": 64}


def keys(stage=0, sequence=1, **more):
    return divided.keys(stage, sequence_parallel_size=sequence, **more)


REAL = {  # name: (a model, DeepSpeed's configuration, the ranks that are rehearsed)
    "Llama, stage 1, more ranks than key-value heads": (LLAMA, keys(1, 4), (2,)),
    "Qwen3, stage 2": (QWEN3, keys(2, 2), (1,)),
    "Llama, stage 3": (LLAMA, keys(3, 2), (0, 3)),
}


@pytest.fixture(scope="module")
def libraries():
    preload("transformers.LlamaForCausalLM")


@pytest.mark.ranks
@pytest.mark.parametrize("name", REAL)
def test_every_figure_is_that_of_real_ranks(name, libraries):
    model, config, rehearsed_ranks = REAL[name]
    asked = ask(model, config, 4)
    real = launch(trained, 4, {"asked": asked}, device="cpu")
    for rank in rehearsed_ranks:
        rehearsed = rehearse(trained, 4, rank, {"asked": asked})
        assert cases.differences(real[rank], rehearsed) == {}, f"rank {rank}"
        assert real[rank]["sent"] == rehearsed["sent"] and "all_to_all_single, sequence" in rehearsed["sent"]


@pytest.mark.ranks
def test_the_loss_is_taken_over_the_whole_sequence(libraries):
    """As transformers takes it; its gradient, some numbers, is scattered over gloo, elsewhere exchanged."""
    asked = ask(LLAMA, keys(2, 2), 2)
    real = launch(two_steps, 2, {"question": asked}, device="cpu")[1]
    rehearsed = rehearse(two_steps, 2, 1, {"question": asked})
    numbers = {"scatter, sequence", "all_to_all, sequence"}
    sent, other = (
        {what: size for what, size in report["sent"].items() if what not in numbers}
        for report in (real, rehearsed)
    )
    assert real["states"] == rehearsed["states"] and sent == other
    assert max(rehearsed["sent"].get(what, 0) for what in numbers) <= 8


# --- how ranks are divided, and what is refused


@pytest.mark.parametrize(
    "group, axis", [((0, 1), "sequence"), ((2, 3), "sequence"), ((0, 1, 2, 3), "all ranks"), ((1, 3), "data")]
)
def test_a_message_belongs_to_an_axis(group, axis):
    assert Axes(data=2, sequence=2).along(Message("all_reduce", 8, group)) == axis


def test_zero_divides_over_all_ranks():
    sizes = [5000, *[64, 4096] * 5, 5000]
    report = {"sizes": sizes, "expert_sizes": [], "whole": sizes}
    assert Axes(4, sequence=3).most_different(report, 2) == Axes(12).most_different(report, 2)


def test_a_batch_is_counted_by_the_ranks_that_differ_in_their_data():
    asked = ask(
        LLAMA, {"train_batch_size": 8, "gradient_accumulation_steps": 2, "sequence_parallel_size": 2}, 4
    )
    assert (asked.micro_batch, asked.accumulation, str(asked.axes)) == (
        2,
        2,
        "4 ranks = 2 data × 2 sequence",
    )


REFUSED = [  # a model, DeepSpeed's configuration, ranks, tokens, what is said
    (LLAMA, keys(1, 4), 6, 16, "sequence_parallel_size 4 does not divide 6 ranks"),
    (LLAMA, keys(1, 4), 4, 18, "sequence_parallel_size 4 does not divide a sequence of 18 tokens"),
    (LLAMA, keys(1, 8), 8, 16, "does not divide 4 attention heads and 2 key-value heads over 8 ranks"),
    (GPT2, keys(1, 2), 2, 16, "Ulysses needs num_key_value_heads, and GPT2LMHeadModel has none"),
    (LLAMA, keys(1, 2, data_parallel_size=2), 4, 16, "data_parallel_size with sequence_parallel_size"),
    (LLAMA, keys(1, 2, tensor_parallel={"autotp_size": 2}), 4, 16, "together are not rehearsed"),
    (
        SMALL | {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
        keys(1, 2),
        4,
        16,
        "Ulysses divides attention, and Qwen3NextForCausalLM has linear_attention",
    ),
    (
        LLAMA | {"architectures": ["LlamaForSequenceClassification"]},
        keys(1, 2),
        4,
        16,
        "LlamaForSequenceClassification has one label for a sequence",
    ),
]


@pytest.mark.parametrize("model, config, ranks, tokens, words", REFUSED, ids=[words for *_, words in REFUSED])
def test_what_cannot_be_divided_is_refused(model, config, ranks, tokens, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        ask(model, config, ranks, tokens)


def test_advice_keeps_the_axes():
    asked = ask(LLAMA, keys(1, 2), 4)
    assert {change.of(asked).axes.sequence for change in advising.changes(asked)} == {2}


@pytest.mark.ranks
def test_the_command_says_what_is_sent_along_each_axis(tmp_path, capsys):
    (tmp_path / "model.json").write_text(json.dumps(LLAMA))
    (tmp_path / "ds.json").write_text(json.dumps(keys(3, 2)))
    files = ("--model", str(tmp_path / "model.json"), "--deepspeed", str(tmp_path / "ds.json"))
    assert main([*files, "--ranks", "8", "--sequence", "64", "--checkpointing"]) == 0
    said, _ = capsys.readouterr()
    assert "ZeRO stage 3, 8 ranks = 4 data × 2 sequence, 2 x 64 tokens" in said
    assert "all_to_all_single, sequence" in said and "reduce_scatter_tensor, all ranks" in said
