"""Accelerate's file and transformers' training arguments: what is made of them is what Accelerate and
transformers hand to DeepSpeed, or it is refused as they refuse it."""

import json
import subprocess
import sys

import pytest
import yaml
from helpers import launch
from helpers.tools.forecast import of_files, trainer_keys
from helpers.tools.forecast.command_line import main
from helpers.tools.forecast.options import Options
from helpers.tools.rehearsal.refusing import BadQuestion
from helpers.tools.theory.deepspeed_config import read
from tests.rehearsal import integration

MODEL = integration.MODEL
RANKS = 2
TRAIN, MICRO, ACCUMULATION = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
BATCHES = dict.fromkeys((TRAIN, MICRO, ACCUMULATION), "auto")
AUTO = BATCHES | {"bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}
TRAINER = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "bf16": True}
YAML = {"distributed_type": "DEEPSPEED", "num_processes": RANKS, "mixed_precision": "bf16"}
HOST = {"device": "cpu"}


def zero(stage, **keys):
    return AUTO | {"zero_optimization": {"stage": stage, **keys}}


def files(folder, accelerate=None, trainer=None, **given):
    """`read` of files with these keys, and options of the command line."""
    for name, keys in {"accelerate": accelerate, "training_arguments": trainer}.items():
        if keys is not None:
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(keys))
            given[name] = str(folder / f"{name}.yaml")
    return of_files.read(Options("config.json", **({"sequence": 8} | given)), MODEL)


# --- what the libraries themselves hand on

WIDTHS = {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
WIDTHS |= {"stage3_param_persistence_threshold": "auto"}
ADAM = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
DECAY = {"warmup_min_lr": 0, "warmup_max_lr": "auto", "warmup_num_steps": 7, "total_num_steps": "auto"}
GRID = {  # arguments of the Trainer, with DeepSpeed's configuration
    **{f"stage {stage}": TRAINER | {"deepspeed": zero(stage)} for stage in range(4)},
    **{f"stage {stage}, by width": TRAINER | {"deepspeed": zero(stage, **WIDTHS)} for stage in (2, 3)},
    "fp32": {"deepspeed": zero(2)},
    "fp16": {"deepspeed": zero(2) | {"fp16": {"enabled": "auto"}}, "fp16": True},
    "fp16 in the arguments alone": {"deepspeed": BATCHES | {"zero_optimization": {}}, "fp16": True},
    "bf16 in the arguments alone": TRAINER | {"deepspeed": BATCHES | {"zero_optimization": {}}},
    "bf16 for evaluation": {"deepspeed": zero(1), "bf16_full_eval": True},
    "the old spelling": TRAINER | {"deepspeed": BATCHES | {"zero_optimization": {}, "bfloat16": {}}},
    "offload": TRAINER | {"deepspeed": zero(2, offload_optimizer=HOST)},
    "offload, torch's": TRAINER
    | {"deepspeed": zero(2, offload_optimizer=HOST) | {"zero_force_ds_cpu_optimizer": False}},
    "offload of all": TRAINER | {"deepspeed": zero(3, offload_optimizer=HOST, offload_param=HOST)},
    "not fused": TRAINER | {"deepspeed": zero(2), "optim": "adamw_torch"},
    "checkpointing": TRAINER | {"deepspeed": zero(2), "gradient_checkpointing": True},
    "checkpointing by its new name": TRAINER | {"deepspeed": zero(2), "activation_checkpointing": True},
    "clipping": TRAINER | {"deepspeed": zero(2), "max_grad_norm": 0.3},
    "an optimizer": TRAINER
    | {"deepspeed": zero(2) | {"optimizer": {"type": "AdamW", "params": ADAM}}, "learning_rate": 3e-4},
    "all is said twice": TRAINER
    | {"deepspeed": zero(1) | dict(zip(BATCHES, (12, 2, 3))) | {"bf16": {"enabled": True}}},
    "the whole batch alone": {
        "deepspeed": {"train_batch_size": 16, "zero_optimization": {"stage": 1}},
    },
    "a scheduler": TRAINER
    | {"deepspeed": zero(2) | {"scheduler": {"type": "WarmupDecayLR", "params": DECAY}}, "warmup_steps": 7},
    # refused
    "another micro-batch": TRAINER | {"deepspeed": zero(2) | {"train_micro_batch_size_per_gpu": 1}},
    "another accumulation": TRAINER | {"deepspeed": zero(2) | {"gradient_accumulation_steps": 1}},
    "another whole batch": TRAINER | {"deepspeed": zero(2) | {"train_batch_size": 6}},
    "another clipping": TRAINER | {"deepspeed": zero(2) | {"gradient_clipping": 0.5}},
    "bf16 not in the arguments": {"deepspeed": zero(2) | {"bf16": {"enabled": True}}},
    "fp16 in one, bf16 in the other": TRAINER | {"deepspeed": zero(2) | {"fp16": {"enabled": True}}},
    "both in the arguments": TRAINER | {"deepspeed": zero(2), "fp16": True},
    "another learning rate": TRAINER
    | {"deepspeed": zero(2) | {"optimizer": {"type": "AdamW", "params": {"lr": 1.0}}}},
    "another warmup": TRAINER
    | {"deepspeed": zero(2) | {"scheduler": {"type": "WarmupDecayLR", "params": DECAY}}, "max_steps": 9},
    "no section for ZeRO": TRAINER | {"deepspeed": AUTO},
    "auto that nobody fills": TRAINER | {"deepspeed": zero(2, allgather_bucket_size="auto")},
}


def agrees(real, folder, **given):
    """Whether what is read of files is what was really handed on, or is refused in the same words."""
    if "refused" in real:
        first = " ".join(real["refused"].split(".\n")[0].split())
        with pytest.raises(BadQuestion) as problem:
            files(folder, **given)
        forbidden = "the following accelerate config variables will be ignored" in first
        return ("file must not say" if forbidden else first) in str(problem.value)
    found, config = files(folder, **given), dict(real["config"])
    mine = dict(found.config)
    assert mine.pop("scheduler", {}).keys() == config.pop("scheduler", {}).keys()
    if config.pop("zero_allow_untested_optimizer", False):
        assert real["optimizer"] == handed_optimizer(mine.pop("optimizer", None), mine)
    config.pop("train_batch_size")
    config.setdefault("train_micro_batch_size_per_gpu", mine["train_micro_batch_size_per_gpu"])
    return mine == config and found.checkpointing == real["checkpointing"]


def handed_optimizer(section, config):
    """The class of the optimizer, and whether it is fused; without a section it is what `ask` assumes."""
    if section is None:
        return ["DeepSpeedCPUAdam", False] if read(config, ranks=RANKS).offload else ["AdamW", True]
    assert section["params"].pop("torch_adam")
    return ["AdamW", section["params"].get("fused", False)]


@pytest.mark.ranks
def test_of_training_arguments_is_read_what_the_trainer_hands_to_deepspeed(tmp_path):
    real = launch(integration.several, RANKS, {"cases": GRID}, device="cpu")[0]
    refused = {name for name in real if "refused" in real[name]}
    assert refused == set(list(GRID)[list(GRID).index("another micro-batch") :])
    different = [name for name in GRID if not agrees(real[name], tmp_path, trainer=GRID[name], ranks=RANKS)]
    assert not different


LAUNCHED = {  # Accelerate's deepspeed_config and mixed_precision; arguments of the Trainer beside it
    "stage 3": (
        {
            "zero_stage": 3,
            "gradient_accumulation_steps": 3,
            "gradient_clipping": 0.7,
            "zero3_init_flag": True,
        },
        "bf16",
        {"the same": TRAINER | {"max_grad_norm": 0.7}, "another": TRAINER, "no bf16": {}},
    ),
    "offload": (
        {"zero_stage": 2, "offload_optimizer_device": "cpu", "offload_param_device": "none"},
        "no",
        {"the same": TRAINER, "its own deepspeed": TRAINER | {"deepspeed": zero(1)}},
    ),
    "a file": (
        {"deepspeed_config_file": "ds.json", "zero3_init_flag": False},
        None,
        {"the same": TRAINER, "another deepspeed": TRAINER | {"deepspeed": zero(1)}},
    ),
    "a file, and more": ({"deepspeed_config_file": "ds.json", "zero_stage": 2}, None, {"the same": TRAINER}),
    "nothing": ({}, "fp16", {"the same": {"fp16": True}}),
}


@pytest.mark.ranks
@pytest.mark.parametrize("name", LAUNCHED)
def test_of_accelerates_file_is_read_what_accelerate_launch_hands_to_deepspeed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section, precision, trainers = LAUNCHED[name]
    accelerate = YAML | {"mixed_precision": precision, "deepspeed_config": section, "main_process_port": 0}
    if precision is None:
        del accelerate["mixed_precision"]
    (tmp_path / "ds.json").write_text(json.dumps(zero(3, **WIDTHS)))
    (tmp_path / "accelerate.yaml").write_text(yaml.safe_dump(accelerate))
    real = launched(tmp_path, {"Accelerate alone": None} | trainers)
    alone = real.pop("Accelerate alone")
    if "refused" in alone:
        assert agrees(alone, tmp_path, accelerate=accelerate)
    else:
        found = files(tmp_path, accelerate=accelerate)
        given = {"ranks": RANKS, "model": shape(), "micro_batch": 3}
        mine, config = (read(one, **given).config for one in (found.config, alone["config"]))
        assert config.pop("zero_allow_untested_optimizer") and mine == config
    for other in trainers:
        assert agrees(real[other], tmp_path, accelerate=accelerate, trainer=trainers[other]), other


def launched(folder, cases):
    """What `accelerate launch` makes of accelerate.yaml and the cases."""
    (folder / "cases.json").write_text(json.dumps(cases))
    words = ["accelerate.commands.launch", "--config_file", "accelerate.yaml", integration.__file__]
    subprocess.run(
        [sys.executable, "-m", *words, "cases.json", "answers.json"], check=True, cwd=folder, timeout=300
    )
    return json.loads((folder / "answers.json").read_text())


def shape():
    import transformers

    return transformers.AutoConfig.for_model(**MODEL)


# --- what is refused at once

NOT_ACCELERATE = [  # keys of Accelerate's file, what is said
    ({"distributed_type": "FSDP"}, "asks for FSDP, and this command rehearses DeepSpeed alone"),
    ({"distributed_type": "MULTI_GPU"}, "asks for DDP on several GPUs, and"),
    ({"distributed_type": "MEGATRON_LM"}, "asks for Megatron-LM, and"),
    ({"distributed_type": "NO"}, "asks for training without distribution, and"),
    ({"distributed_type": None}, "asks for no distributed_type, and"),
    ({"compute_environment": "AMAZON_SAGEMAKER"}, "is for AMAZON_SAGEMAKER: only LOCAL_MACHINE"),
    ({"mixed_precision": "fp8"}, "must be 'no', 'bf16' or 'fp16', quoted, not 'fp8'"),
    ({"mixed_precision": False}, "quoted, not False"),
    ({"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "asks for torch.compile (dynamo_config)"),
    ({"parallelism_config": {"parallelism_config_tp_size": 2}}, "asks for Accelerate's own parallelism"),
    ({"use_cpu": True}, "asks for training on CPUs"),
    ({"deepspeed_config": {"deepspeed_moe_layer_cls_names": "Mixer"}}, "whole layers of experts"),
    ({"deepspeed_config": [2]}, "deepspeed_config in "),
    ({"deepspeed_config": {"deepspeed_config_file": "none.json"}}, "'none.json' is no file in the folder"),
    ({"num_processes": None}, "has num_processes None and num_machines 1: say with --ranks"),
    ({"num_processes": "8"}, "has num_processes '8'"),
    ({"num_proceses": 8}, "Accelerate refuses"),
]


@pytest.mark.parametrize("keys, words", NOT_ACCELERATE, ids=[words for _, words in NOT_ACCELERATE])
def test_a_file_of_accelerate_that_is_not_rehearsed_is_refused_by_name(keys, words, tmp_path):
    with pytest.raises(BadQuestion) as problem:
        files(tmp_path, accelerate=YAML | {"deepspeed_config": {"zero_stage": 2}} | keys)
    assert words in str(problem.value) and "\n" not in str(problem.value)


def test_of_two_places_for_the_same_accelerate_takes_none(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(zero(2)))
    section = {"deepspeed_config_file": str(tmp_path / "ds.json"), "zero_stage": 2, "zero3_init_flag": False}
    with pytest.raises(BadQuestion, match="Accelerate's file must not say zero_stage, mixed_precision$"):
        files(tmp_path, accelerate=YAML | {"deepspeed_config": section})


GIVEN = TRAINER | {"deepspeed": zero(2)}
NOT_TRAINER = [  # keys beside those, what is said
    ({"use_peft": True}, "asks for adapters (use_peft: True)"),
    ({"lora_r": 16}, "asks for adapters (lora_r: 16)"),
    ({"adapter": "qlora"}, "asks for adapters (adapter: 'qlora')"),
    ({"finetuning_type": "lora", "template": "llama3"}, "asks for finetuning_type lora"),
    ({"cutoff_len": 8}, "asks for finetuning_type lora"),  # by LlamaFactory's default
    ({"finetuning_type": "full", "stage": "dpo"}, "asks for stage dpo"),
    ({"rl": "dpo"}, "asks for another training than of a language model alone (rl: 'dpo')"),
    ({"loss_type": ["sigmoid"]}, "asks for another loss"),
    ({"load_in_4bit": True}, "asks for a quantised model"),
    ({"fsdp": "full_shard auto_wrap"}, "asks for FSDP"),
    ({"torch_compile": True}, "asks for torch.compile"),
    ({"use_liger_kernel": True}, "asks for other kernels"),
    ({"auto_find_batch_size": True}, "asks for a batch size that the run finds"),
    ({"accelerator_config": {"split_batches": True}}, "accelerator_config in "),
    ({"use_cpu": True}, "asks for training on CPUs"),
    ({"optim": "adamw_bnb_8bit"}, "asks for optim adamw_bnb_8bit"),
    ({"optim": "nonsense"}, "transformers refuses "),
    ({"bf16": "yes"}, "bf16 in "),
    ({"per_device_train_batch_size": 0}, "must be a whole number, 1 or more, not 0"),
    ({"learning_rate": "fast"}, "learning_rate in "),
    ({"gradient_checkpointing_kwargs": {"every_n_layers": 2}}, "use_reentrant alone is rehearsed"),
    ({"max_length": 8}, "TRL has defaults of its own for gradient_checkpointing,"),
    ({"max_length": 8, "max_seq_length": 9, "gradient_checkpointing": True}, "in several ways"),
    ({"max_seq_length": "long"}, "max_seq_length in "),
    ({"deepspeed": None}, "nothing names a configuration of DeepSpeed"),
    ({"deepspeed": "none.json"}, "'none.json' is no file in the folder"),
    ({"deepspeed": {"zero_optimization": {}, MICRO: "auto"}}, "and DeepSpeed is told of 1: write"),
    (
        {"deepspeed": {"zero_optimization": {}}, "gradient_accumulation_steps": 1},
        f'write "{MICRO}": "auto"',
    ),
]


@pytest.mark.parametrize("keys, words", NOT_TRAINER, ids=[words for _, words in NOT_TRAINER])
def test_training_arguments_that_are_not_rehearsed_are_refused_by_name(keys, words, tmp_path):
    with pytest.raises(BadQuestion) as problem:
        files(tmp_path, trainer=GIVEN | keys, ranks=RANKS)
    assert words in str(problem.value) and "\n" not in str(problem.value)


def test_what_nothing_says_is_asked_for(tmp_path):
    for given, words in [
        ({"trainer": GIVEN}, "how many GPUs there are: give --ranks"),
        ({"trainer": GIVEN, "ranks": 2, "sequence": None}, "how many tokens a sequence has: give --sequence"),
        ({"deepspeed": "ds.json"}, "give --ranks"),
        ({"ranks": 2}, "give one with --deepspeed"),
    ]:
        with pytest.raises(BadQuestion, match=words):
            files(tmp_path, **given)


@pytest.mark.parametrize(
    "text, words", [("{,", "is not JSON"), ("a: [", "is not YAML"), ("- a", "holds list")]
)
def test_a_file_without_keys_is_refused(text, words, tmp_path, capsys):
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    (tmp_path / "file").write_text(text)
    for option in ("--accelerate", "--training-arguments"):
        assert main(["--model", str(tmp_path / "model.json"), option, str(tmp_path / "file")]) == 2
        problem = capsys.readouterr().err
        assert problem.startswith("cannot be rehearsed: ") and words in problem and problem.count("\n") == 1


def test_a_file_with_comments_is_refused_where_accelerate_would_read_it(tmp_path):
    (tmp_path / "ds.json").write_text("{ // fp32\n}")
    with pytest.raises(BadQuestion, match="is not JSON, and Accelerate reads no comments"):
        files(tmp_path, trainer=TRAINER, ranks=2, deepspeed=str(tmp_path / "ds.json"))


# --- options count more than files

SECTION = YAML | {"num_processes": 16, "num_machines": 4, "deepspeed_config": {"zero_stage": 1}}
MORE = {
    "max_seq_length": 64,
    "gradient_checkpointing": True,
    "warmup": 3,
    "odd": 1,
    "seed": 4,
    "hub_token": "x",
}
COUNTS = [  # files, options, what is said, notes
    ({"accelerate": SECTION}, {}, {"ranks": 16, "gpus_per_host": 4, "sequence": 8}, []),
    (
        {"accelerate": SECTION},
        {"ranks": 8, "gpus_per_host": 1},
        {"ranks": 8, "gpus_per_host": 1},
        ["--ranks 8 counts more than 16 of num_processes in"],
    ),
    (
        {"accelerate": SECTION | {"deepspeed_config": {"zero_stages": 1}}},
        {},
        {},
        ["Accelerate knows no zero_stages in deepspeed_config and passes over it"],
    ),
    (
        {"trainer": GIVEN | MORE},
        {"ranks": 2, "sequence": None},
        {"sequence": 64, "checkpointing": True, "gpus_per_host": 8},
        ["is not read: odd"],
    ),
    (
        {"trainer": GIVEN | MORE},
        {"ranks": 2, "checkpointing": False},
        {"sequence": 8, "checkpointing": False},
        ["--checkpointing False counts", "is not read: odd", "--sequence 8 counts more than 64 of"],
    ),
    (
        {"trainer": GIVEN | {"gradient_checkpointing_kwargs": {"use_reentrant": True}}},
        {"ranks": 2, "checkpointing": True},
        {"checkpointing": True},
        [],
    ),
    (
        {"trainer": GIVEN | {"gradient_checkpointing_kwargs": {"use_reentrant": True}}},
        {"ranks": 2},
        {},
        ["checkpointing is rehearsed without reentrance"],
    ),
    (
        {"trainer": GIVEN | {"neftune_noise_alpha": 5, "attn_implementation": "eager", "hub_token": "x"}},
        {"ranks": 2},
        {},
        ["is not read: attn_implementation, neftune_noise_alpha"],
    ),
    ({"trainer": {"deepspeed": zero(2)}}, {"ranks": 2}, {}, ["names no per_device_train_batch_size"]),
]


@pytest.mark.parametrize("keys, given, known, notes", COUNTS)
def test_an_option_counts_more_than_a_file_and_a_note_says_so(keys, given, known, notes, tmp_path):
    found = files(tmp_path, **keys, **given)
    assert {name: getattr(found, name) for name in known} == known
    assert len(found.notes) == len(notes), found.notes
    assert all(words in note for words, note in zip(notes, found.notes))


def test_deepspeeds_file_counts_more_than_what_other_files_say_of_it(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(zero(3)))
    given = {"deepspeed": str(tmp_path / "ds.json"), "ranks": 2}
    for keys in ({"accelerate": SECTION}, {"trainer": GIVEN}, {"accelerate": SECTION, "trainer": GIVEN}):
        found = files(tmp_path, **keys, **given)
        assert found.config["zero_optimization"] == {"stage": 3} and found.config["bf16"]["enabled"]
        assert sum("--deepspeed" in note for note in found.notes) == len(keys)


def test_variables_of_accelerate_are_neither_read_nor_left(tmp_path, monkeypatch):
    import os

    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    before = dict(os.environ)
    found = files(tmp_path, accelerate=YAML | {"deepspeed_config": {}})
    assert found.config["zero_optimization"]["stage"] == 2 and dict(os.environ) == before


# --- dialects

DIALECTS = [  # a file, the arguments and the sequence that it means
    (
        {"finetuning_type": "full", "stage": "sft", "template": "qwen", "cutoff_len": 32, "lora_rank": 8},
        {"gradient_checkpointing": True},
        32,
    ),
    ({"finetuning_type": "full", "disable_gradient_checkpointing": True}, {}, None),
    (
        {"base_model": "x", "micro_batch_size": 4, "sequence_len": 16, "optimizer": "adamw_torch"},
        {"per_device_train_batch_size": 4, "optim": "adamw_torch"},
        16,
    ),
    ({"base_model": "x", "bf16": "auto", "micro_batch_size": 2}, {}, None),
    (
        {"max_length": 8, "gradient_checkpointing": False, "packing": True},
        {"gradient_checkpointing": False},
        8,
    ),
    ({"learning_rate": "1e-5"}, {"learning_rate": 1e-5}, None),
]


@pytest.mark.parametrize("keys, values, sequence", DIALECTS)
def test_what_llamafactory_axolotl_and_trl_write(keys, values, sequence, tmp_path):
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(TRAINER | keys))
    found = trainer_keys.read(str(tmp_path / "file.yaml"))
    assert found.values == TRAINER | values and found.sequence == sequence


def test_arguments_that_transformers_has_written_are_read_without_a_word(tmp_path):
    import transformers

    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=4)
    (tmp_path / "file.json").write_text(arguments.to_json_string())
    found = trainer_keys.read(str(tmp_path / "file.json"))
    assert found.values["per_device_train_batch_size"] == 4 and found.values["bf16"] is False
    assert not found.notes


# --- the command

ROWS = ("states between", "highest moment", "  ", "rank 0 needs", "the smallest GPU")


def run(folder, capsys, *words):
    """What the command prints of bytes."""
    (folder / "model.json").write_text(json.dumps(MODEL))
    assert main(["--model", str(folder / "model.json"), "--only-rank", "0", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.ranks
def test_the_command_says_of_files_what_it_says_of_deepspeeds_own(tmp_path, capsys):
    section = {"zero_stage": 2, "gradient_clipping": 1.0, "offload_optimizer_device": "none"}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(YAML | {"deepspeed_config": section}))
    arguments = TRAINER | {"gradient_checkpointing": True, "max_seq_length": 24}
    (tmp_path / "t.json").write_text(json.dumps(arguments))
    of_two = ["--accelerate", str(tmp_path / "a.yaml"), "--training-arguments", str(tmp_path / "t.json")]
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_clipping": 1.0}
    config |= {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    of_one = ["--deepspeed", str(tmp_path / "ds.json"), "--ranks", "2", "--sequence", "24"]
    first, second = (
        run(tmp_path, capsys, *words) for words in (of_two, [*of_one, "--gradient-checkpointing"])
    )
    assert first[0] == second[0] and first[0].endswith("2 x 24 tokens, accumulation 3")
    bytes_of = [[line for line in lines if line.startswith(ROWS)] for lines in (first, second)]
    assert bytes_of[0] == bytes_of[1] and len(bytes_of[0]) > 10
    other = run(tmp_path, capsys, *of_two, "--micro-batch", "4", "--no-checkpointing")
    assert other[0].endswith("4 x 24 tokens, accumulation 3")
    assert any("--micro-batch 4 counts more than the file: accumulation 3, 24" in line for line in other)
