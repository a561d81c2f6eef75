"""Accelerate's file and transformers' training arguments: what is made of them is what Accelerate and
transformers hand to DeepSpeed, or it is refused as they refuse it."""

import json
import subprocess
import sys

import pytest
import yaml
from helpers import launch
from helpers.tools.rehearsal import of_accelerate, of_files, trainer_keys
from helpers.tools.rehearsal.__main__ import main
from helpers.tools.rehearsal.refusing import BadQuestion
from helpers.tools.theory.deepspeed_config import read
from tests.rehearsal import integration

MODEL = integration.MODEL
RANKS = 2
BATCHES = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
AUTO = BATCHES | {"bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}
TRAINER = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "bf16": True}
YAML = {"distributed_type": "DEEPSPEED", "num_processes": RANKS, "mixed_precision": "bf16"}
HOST = {"device": "cpu"}


def zero(stage, **keys):
    return AUTO | {"zero_optimization": {"stage": stage, **keys}}


def options(**given):
    """What the command line gives, as `said` takes it."""
    from argparse import Namespace

    names = ("deepspeed", "accelerate", "training_arguments", "ranks", "micro_batch", "checkpointing")
    return Namespace(**(dict.fromkeys((*names, "gpus_per_host")) | {"sequence": 8} | given))


def files(folder, accelerate=None, trainer=None, **given):
    """`said` of files with these keys."""
    for name, keys in {"accelerate": accelerate, "training_arguments": trainer}.items():
        if keys is not None:
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(keys))
            given[name] = str(folder / f"{name}.yaml")
    return of_files.said(options(**given), MODEL)


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
        return first in str(problem.value)
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
    subprocess.run([sys.executable, "-m", *words, "cases.json", "answers.json"], check=True, cwd=folder)
    return json.loads((folder / "answers.json").read_text())


def shape():
    import transformers

    return transformers.AutoConfig.for_model(**MODEL)
