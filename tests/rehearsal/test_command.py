"""`python -m helpers.tools.rehearsal`: what it reads, its table, its verdict and its exit status."""

import json
import re

import pytest
from helpers import theory
from helpers.tools.forecast import answer
from helpers.tools.forecast.command_line import main
from helpers.tools.forecast.units import size
from helpers.tools.rehearsal import question, reserving
from helpers.tools.rehearsal.cards import UnknownCard, card
from tests.support import configuration

LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 4,
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}


@pytest.mark.parametrize(
    "text, number",
    [("80GB", 80e9), ("80 GiB", 80 * 2**30), ("2.5e9", 2.5e9), ("123", 123), ("512MiB", 2**29)],
)
def test_sizes_are_read_as_people_write_them(text, number):
    assert size(text) == number


@pytest.mark.parametrize("text", ["80 gigs", "much", "", "-3GB", "0GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(question.BadQuestion, match="written as 80GB, 80GiB or 80e9"):
        size(text)


def test_auto_is_filled_in():
    asked = question.ask(LLAMA, AUTO, ranks=64, sequence=32, micro_batch=2)
    zero = asked.config["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["stage3_param_persistence_threshold"]) == (64 * 64, 640)
    assert asked.config["bf16"] == {"enabled": True} and asked.config["gradient_clipping"] == 1.0
    assert (
        asked.config["train_micro_batch_size_per_gpu"] == 2
        and asked.accumulation == 4
        and asked.config["gradient_accumulation_steps"] == 2
    )
    assert "auto" not in json.dumps(asked.config)
    assert AUTO["zero_optimization"]["reduce_bucket_size"] == "auto", "what was given is not changed"


BAD = [  # the model, DeepSpeed's configuration, what is said
    ({"model_type": "nobody"}, {}, "transformers knows no model_type 'nobody'"),
    (
        {"layers": 2, "colour": 3},
        {},
        "a model is a configuration of transformers, with its model_type, or has keys out of context, heads",
    ),
    ({"width": 10, "heads": 3}, {}, "the model's width 10 is not a multiple of heads 3"),
    ({"layers": 2}, {"optimizer": {"type": "Muon"}}, "the optimizer Muon is not rehearsed"),
    (
        {"layers": 2},
        {"train_batch_size": 9, "gradient_accumulation_steps": 2},
        "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 9 !=",
    ),
    ({"layers": 2}, {"data_efficiency": {"enabled": True}}, "data_efficiency needs a function of your own"),
    ({"layers": 2}, {"compile": {"deepcompile": True}}, "compile.deepcompile needs a function of your own"),
    (
        {"layers": 2},
        {"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}},
        "zero_quantized_gradients needs a function of your own",
    ),
    (
        {"layers": 2},
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/nowhere"}}},
        '"nvme" is not rehearsed: ask with "device": "cpu"',
    ),
    ({"model_type": "t5"}, {}, "t5 is an encoder-decoder, and this command rehearses none"),
    ({"model_type": "bart", "is_encoder_decoder": True}, {}, "bart is an encoder-decoder"),
    ({"model_type": "llama", "rope_scaling": 3}, {}, "transformers refuses the model's configuration"),
    (
        {"model_type": "llama", "quantization_config": {"load_in_4bit": True}},
        {},
        "a model that is quantised already is not rehearsed",
    ),
]


@pytest.mark.parametrize("model, config, words", BAD, ids=[words[:30] for _, _, words in BAD])
def test_what_is_not_rehearsed_is_said(model, config, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        question.ask(model, config, ranks=4, sequence=8)


GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 4, "n_head": 12, "vocab_size": 50257}
READ = [  # DeepSpeed's configuration, ranks, --micro-batch; what is rehearsed, what the notes say
    ({"train_batch_size": 256}, 4, None, (64, 1, "fp32", 0, False), []),
    ({"train_batch_size": 256, "gradient_accumulation_steps": 4}, 8, None, (8, 4, "fp32", 0, False), []),
    ({"train_batch_size": 256}, 4, 2, (2, 32, "fp32", 0, False), ["--micro-batch 2 counts more"]),
    (
        {"zero_optimization": {"stage": 3, "offload_optimizer": None}, "optimizer": {}, "bf16": None},
        4,
        None,
        (1, 1, "fp32", 3, False),
        ["nothing says how large a micro-batch is"],
    ),
    (
        {"fp16": {"enabled": "auto", "loss_scale": 0}, "optimizer": {"type": "AdamW", "params": None}},
        4,
        1,
        (1, 1, "fp16", 0, False),
        ["fp16 is assumed"],
    ),
    (
        {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        2,
        1,
        (1, 1, "bf16", 2, True),
        ["offload_param does nothing at stage 2"],
    ),
    (
        {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "cpu_offload": True}},
        2,
        1,
        (1, 1, "bf16", 2, True),
        [],
    ),
    (
        {
            "fp8": {"enabled": True},
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "auto"}},
        },
        2,
        1,
        (1, 1, "fp32", 2, False),
        ["zero_optimization.offload_optimizer.device", "DeepSpeed knows no fp8"],
    ),
    (
        {"tensor_parallel": {"autotp_size": 1}, "data_efficiency": {"enabled": False}},
        2,
        1,
        (1, 1, "fp32", 0, False),
        [],
    ),
]


@pytest.mark.parametrize("config, ranks, micro_batch, known, notes", READ)
def test_deepspeeds_configuration_is_read_as_deepspeed_reads_it(config, ranks, micro_batch, known, notes):
    asked = question.ask(GPT2, config, ranks=ranks, sequence=512, micro_batch=micro_batch)
    sizes = (asked.micro_batch, asked.accumulation, asked.dtype, asked.stage, asked.is_offloaded)
    said = [note for note in asked.notes if not note.startswith("no optimizer is named")]
    assert sizes == known and len(said) == len(notes)
    assert all(note.startswith(words) for note, words in zip(said, notes))


@pytest.mark.parametrize(
    "config, optimizer",
    [
        ({}, {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True, "fused": True}}),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            {"type": "AdamW", "params": {"lr": 1e-4}},
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"lr": "auto", "weight_decay": 0.1}}},
            {"type": "Adam", "params": {"lr": 5e-5, "weight_decay": 0.1}},
        ),
    ],
)
def test_the_optimizer_is_the_files_or_what_transformers_takes(config, optimizer):
    asked = question.ask(GPT2, config, ranks=2, sequence=8, micro_batch=1)
    is_said = any(note.startswith("no optimizer is named: AdamW") for note in asked.notes)
    assert asked.config["optimizer"] == optimizer and is_said == ("optimizer" not in config)


def test_a_gpt_of_five_numbers_is_a_gpt_2():
    asked = question.ask({"layers": 2, "width": 48, "heads": 3}, {}, 2, 8)
    assert (asked.model["model_type"], asked.model["n_embd"], asked.model["n_layer"]) == ("gpt2", 48, 2)


def test_what_nobody_foresaw_ends_with_its_own_status(tmp_path, monkeypatch, capsys):
    def broken(*arguments, **options):
        raise AttributeError("for a test")

    monkeypatch.setattr(question, "as_transformers", broken)
    assert ask(tmp_path, GPT2, {}, "--ranks", "2", "--sequence", "8") == 2
    assert "AttributeError: for a test" in capsys.readouterr().err


def ask(folder, model, config, *more):
    """Run the command on two files; its exit status."""
    (folder / "config.json").write_text(json.dumps(model))
    (folder / "ds.json").write_text(json.dumps(config))
    return main(["--model", str(folder), "--deepspeed", str(folder / "ds.json"), *more])


def test_a_file_that_is_not_there_ends_with_its_own_status(tmp_path, capsys):
    status = main(
        ["--model", str(tmp_path / "none.json"), "--deepspeed", "none", "--ranks", "2", "--sequence", "8"]
    )
    assert status == 2 and "none.json cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.ranks
def test_a_model_of_transformers_that_fits(tmp_path, capsys):
    figure = tmp_path / "memory.png"
    status = ask(
        tmp_path,
        LLAMA,
        AUTO,
        "--ranks",
        "64",
        "--sequence",
        "32",
        "--micro-batch",
        "2",
        "--gpu-memory",
        "80GB",
        "--figure",
        str(figure),
    )
    said, progress = capsys.readouterr()
    assert status == 0
    assert re.fullmatch(r"rehearsing rank 0 of 64 \.\.\. \d+ s\n", progress), "all ranks hold the same"
    header = "176,576 parameters in bf16, ZeRO stage 3, 64 ranks, 2 x 32 tokens, accumulation 4"
    assert f"{header} (assumed: bf16)\n" in said
    assert re.search(r"GB +rank 0\n", said) and "reduce_scatter_tensor" in said
    assert re.search(
        r"^fits, with 77\.\d\d GB to spare of 80\.00 GB\n"
        r"\(rank \d+ needs most, 2\.\d\d GB: allocated 0\.\d\d, ",
        said,
        re.MULTILINE,
    )
    assert all(len(line) <= 110 for line in said.splitlines())
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.ranks
def test_one_that_does_not_fit_is_told_by_how_much_and_what_to_change(tmp_path, capsys):
    size = {"layers": 2, "context": 256}
    config = configuration(0, extra={"gradient_clipping": 0.0})
    more = (
        "--ranks",
        "8",
        "--sequence",
        "256",
        "--micro-batch",
        "4",
        "--only-rank",
        "5",
        "--outside-tensors",
        "1MB",
    )
    status = ask(tmp_path, size, config, *more, "--gpu-memory", "10MB")
    said = capsys.readouterr().out
    assert status == 1
    assert re.search(
        r"^does not fit: in .* \d+ MiB are refused; 0\.\d\d GB too much of 0\.01 GB\n\(rank 5 needs most",
        said,
        re.MULTILINE,
    )
    assert re.search(r"is activations: try .*, which needs 0\.\d\d GB \(rehearsed\)", said) or (
        "is activations: neither buckets" in said
    )


def test_the_bytes_outside_the_allocator_are_those_recorded():
    from helpers import recorded

    runs = [run for run in recorded.runs("zero", ranks=2, shared=False) if run.reports]
    most = max(recorded.device_parts(run)["outside the allocator"] for run in runs)
    assert abs(reserving.OUTSIDE - most) < 0.01e9


@pytest.mark.ranks
def test_the_states_are_those_of_the_exact_formula():
    from helpers import models, rehearse
    from helpers.tools.rehearsal.fitting import two_steps

    asked = question.ask(
        {"layers": 2},
        configuration(
            2, accumulation=3, extra={"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
        ),
        16,
        64,
    )
    report = rehearse(two_steps, 16, 7, {"question": asked}, device="cuda")
    elements = [parameter.numel() for parameter in models.GPT(models.GPTSize(layers=2)).parameters()]
    exact = theory.deepspeed_bytes(
        elements, asked.config, ranks=16, rank=7, moment="between micro-batches", device="cuda"
    )
    assert {category: report["states"][category] for category in answer.CATEGORIES} == {
        category: exact[category] for category in answer.CATEGORIES
    }
    assert report["elements"] == sum(elements)


@pytest.mark.parametrize(
    "name, memory",
    [
        ("4090", 23.61),
        ("NVIDIA H100 80GB", 79.16),
        ("a100-40gb", 39.39),
        ("l40s", 44.39),
        ("H200 SXM", 139.8),
    ],
)
def test_a_gpu_is_known_by_its_name(name, memory):
    assert card(name).memory == int(memory * 2**30)


@pytest.mark.parametrize(
    "name, words", [("A100", "A100 40GB, A100 80GB: say which"), ("MI300", "80GiB"), ("", "")]
)
def test_a_name_of_no_gpu_or_of_several_is_refused(name, words):
    with pytest.raises(UnknownCard, match=words):
        card(name)
