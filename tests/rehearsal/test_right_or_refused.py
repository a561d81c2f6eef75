"""What the command is asked is rehearsed as what it is, or refused in one sentence before anything is built
or written."""

import json
import re

import pytest
from helpers import rehearse, theory
from helpers.tools.forecast import advising
from helpers.tools.forecast.command_line import main
from helpers.tools.forecast.verdict import Verdict
from helpers.tools.rehearsal import question
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.reserving import FITS, NOT, Reserved
from helpers.tools.rehearsal.spread import most_different

GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500, "n_positions": 64}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BERT = SMALL | {"model_type": "bert", "vocab_size": 100, "max_position_embeddings": 64}
LLAMA = SMALL | {"model_type": "llama", "vocab_size": 100}
BF16 = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}


def zero(stage, **keys):
    return BF16 | {"zero_optimization": {"stage": stage, **keys}}


def command(folder, model, config, *more):
    """Run the command on two files; its exit status."""
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "ds.json").write_text(config if isinstance(config, str) else json.dumps(config))
    files = ("--model", str(folder / "model.json"), "--deepspeed", str(folder / "ds.json"))
    return main([*files, "--ranks", "2", "--sequence", "16", *more])


# --- models

MODELS = [  # a model, what is said of it
    ({"model_type": "pegasus"}, "pegasus is an encoder-decoder"),
    ({"model_type": "whisper"}, "whisper is an encoder-decoder"),
    ({"model_type": "mt5", "is_encoder_decoder": True}, "mt5 is an encoder-decoder"),
    ({"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}, "bart is an encoder-decoder"),
    ({"model_type": "llava"}, "llava takes more than text"),
    (
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        "gemma3 takes more than text",
    ),
    ({"model_type": "mllama"}, "mllama takes more than text"),
    ({"model_type": "fuyu", "architectures": ["FuyuForCausalLM"]}, "fuyu takes more than text"),
    ({"model_type": "voxtral"}, "voxtral takes more than text"),
    (LLAMA | {"architectures": {"name": 1}}, "architectures must be a list of names"),
    (LLAMA | {"hidden_size": "big"}, "transformers refuses the model's configuration"),
    ({"model_type": "vit"}, "language models, and vit is none"),
    ({"model_type": "wav2vec2"}, "language models, and wav2vec2 is none"),
    (BERT | {"architectures": ["BertForPreTraining"]}, "BertForPreTraining is not rehearsed, but of bert"),
    (LLAMA | {"architectures": ["LlamaModel"]}, "LlamaModel is not rehearsed, but of llama"),
    (LLAMA | {"architectures": ["OurForCausalLM"], "auto_map": {}}, "OurForCausalLM is not rehearsed"),
    ({"model_type": 5}, "transformers knows no model_type 5"),
]


@pytest.mark.parametrize("model, words", MODELS, ids=[words for _, words in MODELS])
def test_a_model_that_would_be_rehearsed_in_part_is_refused(model, words, tmp_path, capsys):
    assert command(tmp_path, model, BF16) == 2
    said, problem = capsys.readouterr()
    assert "parameters" not in said and problem.startswith("cannot be rehearsed: ") and words in problem
    assert problem.count("\n") == 1


CLASSES = [  # a model, the class that is rehearsed, its notes
    (LLAMA, "LlamaForCausalLM", []),
    (LLAMA | {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM", []),
    (LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification", []),
    (
        LLAMA | {"architectures": ["LLaMAForCausalLM"]},
        "LlamaForCausalLM",
        ["transformers knows no LLaMAForC"],
    ),
    (BERT, "BertForMaskedLM", ["bert is an encoder: BertForMaskedLM is rehearsed"]),
    (BERT | {"is_decoder": True}, "BertLMHeadModel", []),
    (BERT | {"architectures": ["BertForTokenClassification"]}, "BertForTokenClassification", []),
    (BERT | {"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering", []),
    ({"model_type": "distilbert"}, "DistilBertForMaskedLM", ["distilbert is an encoder"]),
    ({"model_type": "bart", "architectures": ["BartForCausalLM"]}, "BartForCausalLM", []),
    (
        {"model_type": "llama4", "architectures": ["Llama4ForCausalLM"]},
        "Llama4ForCausalLM",
        ["Llama4ForCausalLM al"],
    ),
]


@pytest.mark.parametrize("model, name, notes", CLASSES)
def test_the_class_is_the_one_that_the_configuration_calls_for(model, name, notes):
    asked = question.ask(model, BF16, ranks=2, sequence=16)
    assert asked.architecture == name
    said = [note for note in asked.notes if not note.startswith("no optimizer is named")]
    assert len(said) == len(notes) and all(note.startswith(words) for note, words in zip(said, notes))


HEADS = ("ForMaskedLM", "ForTokenClassification", "ForSequenceClassification", "ForQuestionAnswering")


@pytest.mark.ranks
@pytest.mark.parametrize("head", HEADS)
def test_an_encoder_is_rehearsed_with_the_head_that_it_names(head):
    import transformers

    model = BERT | {"architectures": [f"Bert{head}"]}
    asked = question.ask(model, BF16, ranks=2, sequence=16)
    report = rehearse(two_steps, 2, arguments={"question": asked}, device="cuda")
    built = getattr(transformers, f"Bert{head}")(transformers.BertConfig(**model))
    assert report["elements"] == sum(parameter.numel() for parameter in built.parameters())


POSITIONS = [  # a model, the longest sequence
    (GPT2, 64),
    (BERT, 64),
    ({"model_type": "opt", "max_position_embeddings": 128}, 128),
    ({"model_type": "roberta", "max_position_embeddings": 130, "pad_token_id": 1}, 128),
]


@pytest.mark.parametrize("model, most", POSITIONS, ids=[model["model_type"] for model, _ in POSITIONS])
def test_positions_beyond_those_of_the_model_are_refused(model, most):
    question.ask(model, BF16, ranks=2, sequence=most)
    with pytest.raises(
        question.BadQuestion, match=f"has {most} positions, and a sequence has {most + 1} tokens"
    ):
        question.ask(model, BF16, ranks=2, sequence=most + 1)


def test_positions_that_are_computed_go_on_and_a_note_says_so():
    model = LLAMA | {"max_position_embeddings": 2048}
    assert question.ask(model, BF16, ranks=2, sequence=2048).notes == question.ask(model, BF16, 2, 8).notes
    first, *_ = question.ask(model, BF16, ranks=2, sequence=4096).notes
    assert first == "the model's configuration ends at 2,048 positions, and 4,096 are rehearsed"


# --- DeepSpeed's configuration

UNUSED = [
    {"sequence_parallel_size": 1, "tensor_parallel": {"autotp_size": 1}, "pipeline": {"stages": 1}},
    {"expert_parallel": {"enabled": False}, "autotuning": {"enabled": False}},
    {"hybrid_engine": {"enabled": False}, "data_efficiency": {"enabled": False, "seed": 3}},
    {
        "compile": {"deepcompile": False},
        "weight_quantization": {"enabled": False},
        "aio": {"thread_count": 2},
    },
    {"wandb": {"enabled": False}, "flops_profiler": {"enabled": False}, "tensorboard": {"enabled": True}},
]


@pytest.mark.parametrize("sections", UNUSED, ids=[" ".join(sections) for sections in UNUSED])
def test_sections_that_are_not_used_are_as_if_absent(sections):
    plain, asked = (question.ask(GPT2, config, 2, 16) for config in (zero(2), zero(2) | sections))
    assert asked.config | {"compile": None} == plain.config | {"compile": None} and asked.notes == plain.notes


REFUSED = [
    (zero(3, offload_param={"device": "nvme", "nvme_path": "PLACE"}), '"nvme" is not rehearsed'),
    (zero(2, offload_optimizer={"device": "cpu"}, zenflow={"topk_ratio": 0.1}), "zenflow needs a function"),
    (zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5}), "offload_optimizer.ratio needs a function"),
    (
        zero(3, offload_optimizer={"device": "cpu", "super_offload": True}),
        "offload_optimizer.super_offload needs",
    ),
    (zero(3, zero_quantized_weights=True), "zero_quantized_weights needs a function"),
    ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "torch_autocast needs a function"),
    (
        zero(3) | {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
        "bf16_master_weights_and_grads",
    ),
    (BF16 | {"sparse_attention": {"mode": "fixed"}}, "DeepSpeed Sparse Attention has been removed"),
    (BF16 | {"compression_training": {}}, "compression library has been removed"),
    (BF16 | {"optimizer": {"type": "OneBitAdam"}}, "the optimizer OneBitAdam is not rehearsed"),
    (BF16 | {"optimizer": {"type": "Adam", "params": {"amsgrad": True}}}, "own Adam has no amsgrad"),
    ('{"bf16": {"enabled": true}, "bf16": {"enabled": true}}', "uplicate keys"),
    ('{"zero_optimization": 3}', "zero_optimization must be an object with keys"),
    ('["bf16"]', "is an object with keys"),
]


@pytest.mark.parametrize("config, words", REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_not_rehearsed_is_refused_by_name_and_nothing_is_written(config, words, tmp_path, capsys):
    place = tmp_path / "disk"
    text = config if isinstance(config, str) else json.dumps(config).replace("PLACE", str(place))
    assert command(tmp_path, GPT2, text) == 2
    said, problem = capsys.readouterr()
    assert "parameters" not in said and words in problem and "Traceback" not in problem
    assert not place.exists()


ASSUMED = [  # DeepSpeed's configuration, --micro-batch; what of it was assumed
    (BF16, None, ()),
    ({}, None, ("precision", "micro-batch 1", "accumulation 1")),
    ({"bf16": {"enabled": False}}, 4, ("accumulation 1",)),
    ({"fp16": {"enabled": "auto"}, "train_batch_size": 8}, None, ("precision",)),
    ({"bf16": {"enabled": True}, "gradient_accumulation_steps": 4}, None, ("micro-batch 1",)),
]


@pytest.mark.parametrize("config, micro_batch, assumed", ASSUMED)
def test_what_was_assumed_is_named(config, micro_batch, assumed):
    assert question.ask(GPT2, config, 2, 16, micro_batch).assumed == assumed


@pytest.mark.ranks
@pytest.mark.parametrize("more, dtype", [({}, "fp32"), ({"torch_dtype": "bfloat16"}, "bf16")])
def test_without_a_precision_the_models_own_is_rehearsed_and_named(more, dtype, tmp_path, capsys):
    assert command(tmp_path, LLAMA | more, {}) == 0
    assumed = f"(assumed: {dtype}, micro-batch 1, accumulation 1)"
    header = f"parameters in {dtype}, ZeRO stage 0, 2 ranks, 1 x 16 tokens, accumulation 1 {assumed}"
    assert header in capsys.readouterr().out


# --- exit statuses


def test_every_failure_but_a_lack_of_memory_has_status_2(tmp_path, capsys):
    assert command(tmp_path, GPT2, BF16, "--gpu-memory", "1.2.3GB") == 2
    assert command(tmp_path, GPT2, BF16, "--only-rank", "2") == 2
    assert command(tmp_path, GPT2 | {"n_head": 5}, BF16) == 2
    for words in (("--ranks", "0"), ("--micro-batch", "none"), ("--colour", "red")):
        with pytest.raises(SystemExit) as ended:
            command(tmp_path, GPT2, BF16, *words)
        assert ended.value.code == 2
    assert "rank must be from 0 to 1, not 2" in capsys.readouterr().err


# --- the GPU


@pytest.mark.ranks
def test_deepspeed_is_told_how_much_of_the_gpu_is_free():
    """It flattens parameters on the host where the GPU has no room for a second copy: there is one then, and
    half of it again in fp32, on two ranks."""
    asked = question.ask(GPT2, zero(2, offload_optimizer={"device": "cpu"}), ranks=2, sequence=16)

    def building(capacity):
        report = rehearse(two_steps, 2, arguments={"question": asked}, device="cuda", capacity=capacity)
        return sum(report["peaks"]["building"].values()), 2 * report["elements"]

    highest, copy = building(80e9)
    assert 2 * copy <= highest < 2.01 * copy
    assert building(2.1 * copy)[0] == highest
    assert 1.5 * copy <= building(1.9 * copy)[0] < 1.51 * copy


def device():
    import os

    from deepspeed.accelerator import get_accelerator

    return get_accelerator().device_count(), os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]


@pytest.mark.ranks
def test_a_machine_has_as_many_gpus_as_was_said():
    assert rehearse(device, 16, 13, device="cuda", gpus_per_host=4) == (4, "1", "4")


# --- ranks

WIDE = [50257 * 64, *[64 * 64, 64, 64 * 256, 256] * 12, 50257 * 64]


@pytest.mark.parametrize("ranks", [2, 7, 64])
@pytest.mark.parametrize("stage, in_turn", [(1, False), (2, False), (2, True), (3, False)])
def test_the_ranks_that_differ_most_are_found(stage, in_turn, ranks):
    """Beside the exact formula, for every rank."""
    config = {"stage": stage, "round_robin_gradients": in_turn, "reduce_bucket_size": 1000}
    job = {"config": BF16 | {"zero_optimization": config}, "ranks": ranks, "device": "cuda"}

    def held(rank):
        return sum(theory.deepspeed_bytes(WIDE, rank=rank, **job).values())

    every, chosen = [held(rank) for rank in range(ranks)], most_different(WIDE, stage, ranks, in_turn)
    assert 0 in chosen and len(chosen) <= 3
    assert {max(every), min(every)} <= {every[rank] for rank in chosen}


def test_stage_0_holds_the_same_on_every_rank():
    assert most_different(WIDE, 0, 64) == [0]


# --- advice


def report(**peaks):
    return {"peaks": peaks}


def judged(reports, memory, outside=0):
    """A verdict by the sum of what is held, as if the allocator reserved no more."""
    (rank, found), *_ = reports.items()
    most = max(sum(parts.values()) for parts in found["peaks"].values())
    how = FITS if most + outside <= memory else NOT
    return Verdict(rank, Reserved(most, most, most, {"step": most}, how, ("step", most)), outside, memory)


def advised(config, held, needs, room=10, model=GPT2, suffices=lambda changed, report: True, **more):
    """The advice where a changed question needs what `needs` gives of it; and what was tried."""
    asked, tried = question.ask(model, config, 8, 16, **more), []

    def rehearsed(changed, rank):
        tried.append(changed)
        return report(step={"other": needs(changed)})

    reports = {0: report(**held)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Verdict, "of", judged)
        return advising.advice(asked, reports, judged(reports, room), rehearsed, suffices), tried


def test_the_cheapest_change_that_covers_what_is_missing_is_advised_with_its_figure():
    step = {"step": {"optimizer states": 12e9, "other": 8e9}}
    words, tried = advised(zero(3), step, lambda changed: 9e9, room=10e9)
    assert "sub_group_size" not in words, "it gives back 8 of 10 that are missing"
    step = {"step": {"optimizer states": 10e9, "other": 8e9}}
    words, (first,) = advised(zero(3), step, lambda changed: 9e9, room=12e9)
    assert words == (
        'most of it, 10.00 GB, is optimizer states: try "sub_group_size": 100000000, which needs 9.00 GB '
        "(rehearsed)"
    )
    assert first.config["zero_optimization"]["sub_group_size"] == 100_000_000


def test_offload_is_no_advice_for_a_machine_whose_own_memory_is_too_small():
    held = {"step": {"optimizer states": 50e9}}

    def needs(changed):
        return 5e9 if changed.is_offloaded or changed.ranks > 8 else 40e9

    words, _ = advised(zero(3), held, needs, room=10e9)
    assert '"offload_optimizer": {"device": "cpu"}, which needs 5.00 GB' in words
    words, tried = advised(
        zero(3), held, needs, room=10e9, suffices=lambda changed, report: not changed.is_offloaded
    )
    assert any(changed.is_offloaded for changed in tried) and "try 16 GPUs, which needs 5.00 GB" in words


def test_checkpointing_comes_before_micro_batches_these_before_stages_and_offload_before_gpus():
    backward = {"backward": {"activations": 30, "parameters": 30, "optimizer states": 30, "other": 30}}
    config = zero(1, reduce_bucket_size=1000, allgather_bucket_size=1000)
    words, tried = advised(
        config | {"train_micro_batch_size_per_gpu": 4}, backward, lambda changed: 1e3, room=70
    )
    said = [
        (one.checkpointing, one.micro_batch, one.accumulation, one.stage, one.is_offloaded, one.ranks)
        for one in tried
    ]
    assert said[:8] == [
        (True, 4, 1, 1, False, 8),
        (False, 2, 2, 1, False, 8),
        (False, 1, 4, 1, False, 8),
        (False, 4, 1, 2, False, 8),
        (False, 4, 1, 3, False, 8),
        (False, 4, 1, 1, True, 8),
        (False, 4, 1, 3, True, 8),
        (False, 4, 1, 1, False, 16),
    ]
    assert "are enough; with all of it" in words


def test_changes_are_combined_where_none_is_enough_alone():
    def needs(changed):
        return 5 if changed.checkpointing and changed.micro_batch == 1 else 50

    backward = {"backward": {"activations": 30}}
    words, tried = advised(
        zero(3, sub_group_size=10) | {"train_micro_batch_size_per_gpu": 2}, backward, needs
    )
    assert "checkpoint the blocks (--checkpointing) and 2 micro-batches of 1" in words
    assert (tried[-1].micro_batch, tried[-1].accumulation, tried[-1].checkpointing) == (1, 2, True)


@pytest.mark.ranks
def test_a_change_that_cannot_be_made_is_passed_over(tmp_path, capsys):
    xlnet = {"model_type": "xlnet", "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 32}
    xlnet |= {"vocab_size": 100}
    assert command(tmp_path, xlnet, BF16, "--gpu-memory", "150kB", "--outside-tensors", "1kB") == 1
    said = capsys.readouterr().out
    assert "does not fit" in said and "checkpoint" not in said


@pytest.mark.ranks
def test_the_fullest_rank_is_in_the_table(tmp_path, capsys):
    """The token table straddles partitions: those that have a part of it reduce it whole."""
    wide = GPT2 | {"vocab_size": 50000, "n_embd": 256}
    assert command(tmp_path, wide, zero(2, reduce_bucket_size=1000), "--ranks", "16") == 0
    said = capsys.readouterr().out
    assert re.search(r"^GB +rank 0 +rank \d+( +rank \d+)?$", said, re.MULTILINE)


@pytest.mark.ranks
def test_advice_is_rehearsed(tmp_path, capsys):
    """A step that takes a partition at once has no room; in parts it has."""
    wide = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 3}
    wide |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    buckets = {"reduce_bucket_size": 10**7, "stage3_prefetch_bucket_size": 10**7}
    more = ("--checkpointing", "--only-rank", "0", "--gpu-memory")
    assert command(tmp_path, wide, zero(3, **buckets), *more, "21GB") == 1
    said = capsys.readouterr().out
    assert re.search(r"does not fit: in optim.* MiB are refused; .* GB too much of 21.00 GB\n\(rank 0", said)
    assert 'try "sub_group_size": 100000000, which fits only with retries (rehearsed)' in said
    changed = zero(3, sub_group_size=10**8, **buckets)
    assert command(tmp_path, wide, changed, *more, "21GB") == 0
    assert "fits only with retries" in capsys.readouterr().out
