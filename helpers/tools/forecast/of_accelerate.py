"""Accelerate's file: what `accelerate launch` makes of it, told by Accelerate's own code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..rehearsal.refusing import BadQuestion
from .keyed_files import outvoted, read_keys, strict_json

PREFIX = "ACCELERATE_"
FIELDS = f"{PREFIX}CONFIG_DS_FIELDS"  # the keys of Accelerate's file
KINDS = {  # of training that are not DeepSpeed's, as people call them
    "MULTI_GPU": "DDP on several GPUs",
    "NO": "training without distribution",
    "MEGATRON_LM": "Megatron-LM",
    "MULTI_CPU": "training on CPUs",
    "XLA": "training on TPUs",
}
OTHER = {  # keys that change what is held, {key: what is not rehearsed}
    "dynamo_config": "torch.compile",
    "dynamo_backend": "torch.compile",
    "fp8_config": "fp8",
    "parallelism_config": "Accelerate's own parallelism",
    "use_cpu": "training on CPUs",
    "deepspeed_moe_layer_cls_names": "ZeRO-3 with whole layers of experts",
}
UNUSED = (None, False, "", "no", "NO", {}, [])


@dataclass(frozen=True)
class Launch:
    """What `accelerate launch` would start.

    Attributes:
        ranks: of all machines.
        gpus_per_host: of one machine.
        environment: Accelerate's variables, which every rank sees.
        notes: which option counts more, and keys that Accelerate passes over.
    """

    ranks: int
    gpus_per_host: int
    environment: dict[str, str]
    notes: tuple[str, ...]


def read(path: str, ranks: int | None = None, deepspeed: str | None = None) -> Launch:
    """Read Accelerate's file by the code of `accelerate launch`: `launch_command`, `_validate_launch_command`
    and `prepare_deepspeed_cmd_env` of Accelerate 1.15.

    Args:
        ranks: in the place of the file's num_processes.
        deepspeed: a configuration of DeepSpeed, in the place of the file's whole deepspeed_config.

    Raises:
        BadQuestion: it is no training with DeepSpeed, or Accelerate refuses it.
    """
    keys = read_keys(path)
    section = keys.get("deepspeed_config") or {}
    _refuse(path, keys, section)
    machines, processes = keys.get("num_machines", 1), ranks or keys.get("num_processes", -1)
    if type(machines) is not int or type(processes) is not int or machines < 1 or processes < 1:
        named = f"num_processes {keys.get('num_processes')!r} and num_machines {machines!r}"
        raise BadQuestion(f"{path} has {named}: say with --ranks how many GPUs there are")
    strict_json(deepspeed or section.get("deepspeed_config_file") or {})
    with variables({}), refused("Accelerate", path):
        environment, known = _environment(path, processes, deepspeed)
    notes = outvoted("ranks", ranks, keys.get("num_processes"), f"num_processes in {path}")
    notes += outvoted("deepspeed", deepspeed, "all keys" if section else None, f"deepspeed_config in {path}")
    unknown = [] if deepspeed else sorted(set(section) - known)
    notes += [f"Accelerate knows no {key} in deepspeed_config and passes over it" for key in unknown]
    return Launch(processes, max(processes // machines, 1), environment, tuple(notes))


def _refuse(path, keys, section):
    if not isinstance(section, dict):
        raise BadQuestion(f"deepspeed_config in {path} must hold keys, not {section!r}")
    kind = keys.get("distributed_type")
    if kind != "DEEPSPEED":
        other = KINDS.get(str(kind), str(kind)) if kind else "no distributed_type"
        raise BadQuestion(f"{path} asks for {other}, and this command rehearses DeepSpeed alone")
    if keys.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise BadQuestion(f"{path} is for {keys['compute_environment']}: only LOCAL_MACHINE is rehearsed")
    if keys.get("mixed_precision", "no") not in ("no", "bf16", "fp16", None):
        value = repr(keys["mixed_precision"])
        raise BadQuestion(f"mixed_precision in {path} must be 'no', 'bf16' or 'fp16', quoted, not {value}")
    for key, words in OTHER.items():
        used = keys.get(key, section.get(key))
        if key == "dynamo_config" and isinstance(used, dict):
            used = used.get("dynamo_backend")
        if used not in UNUSED:
            raise BadQuestion(f"{path} asks for {words} ({key}), which is not rehearsed: leave it out")


def _environment(path, processes, deepspeed):
    """(Accelerate's variables for a rank, the names of all options of `accelerate launch`)."""
    from accelerate.commands import launch
    from accelerate.utils import prepare_deepspeed_cmd_env

    words = ["--config_file", str(path), "--num_processes", str(processes), "--main_process_port", "0"]
    options = launch.launch_command_parser().parse_args([*words, "script.py"])
    known = set(vars(options))
    options, file, has_precision = launch._validate_launch_command(options)
    fields = [*file.deepspeed_config, *(["mixed_precision"] if has_precision else [])]
    if deepspeed:
        vars(options).update(dict.fromkeys(file.deepspeed_config), deepspeed_config_file=deepspeed)
        fields = []
    options.deepspeed_fields_from_accelerate_config = ",".join(fields)
    _, environment = prepare_deepspeed_cmd_env(options)
    return {key: value for key, value in environment.items() if key.startswith(PREFIX)}, known


def configuration() -> dict:
    """DeepSpeed's configuration as `Accelerator()` makes it from Accelerate's variables, by its
    `DeepSpeedPlugin`; what is "auto" in it depends on the program."""
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(os.environ[f"{PREFIX}MIXED_PRECISION"])
    return plugin.deepspeed_config


@contextlib.contextmanager
def variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Let these be Accelerate's only variables."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(PREFIX)}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def refused(who: str, what: str) -> Iterator[None]:
    """Let a `BadQuestion` in one sentence say what a library raises."""
    try:
        yield
    except BadQuestion:
        raise
    except Exception as error:
        words, *_advice = str(error).split(".\n")
        words = " ".join(words.split()) or type(error).__name__
        raise BadQuestion(f"{who} refuses {what}: {_both(words) or words}") from error


def _both(words):
    """Of all keys that Accelerate forbids beside DeepSpeed's own configuration, those that are there."""
    there = os.environ.get(FIELDS, "").split(",")
    both = [name for name in there if "will be ignored" in words and f"'{name}'" in words]
    return both and f"beside DeepSpeed's own configuration, Accelerate's file must not say {', '.join(both)}"
