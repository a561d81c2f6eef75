"""Optimizer states on a disk by DeepSpeed's own means, on a CPU: the experiment `nvme`.

`python -m helpers.course.recording.nvme` compiles what it needs, once: DeepSpeed's op async_io, which takes
minutes and the library libaio.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

import deepspeed
from helpers.course import models
from helpers.course.recording.experiment import one_micro_batch
from helpers.course.recording.in_ranks import engine_of, three_steps
from helpers.tools.measure.ledger import Ledger

# buffers for Adam's three states, gradients, and one more
_ON_DISK = {"device": "nvme", "nvme_path": "swap", "buffer_count": 5}
_PARAMETERS_ON_DISK = {**_ON_DISK, "buffer_count": 6, "buffer_size": 600_000, "max_in_cpu": 0}
PLACES = {  # of the optimizer's states
    "device": {},
    "host": {"offload_optimizer": {"device": "cpu"}},
    "disk": {"offload_optimizer": _ON_DISK},
    "disk, parameters too": {"offload_optimizer": _ON_DISK, "offload_param": _PARAMETERS_ON_DISK},
    "disk, sub-groups under 1 MiB": {"offload_optimizer": _ON_DISK, "sub_group_size": 200_000},
    "disk, stage 2": {"offload_optimizer": _ON_DISK, "stage": 2},
    "disk, pipelined": {"offload_optimizer": _ON_DISK | {"pipeline_read": True, "pipeline_write": True}},
}


def configuration(ranks: int, place: str, **others: object) -> dict:
    """At stage 3 where the place says nothing else."""
    keys = {"reduce_bucket_size": 100_000, "sub_group_size": 800_000, "stage3_param_persistence_threshold": 0}
    return one_micro_batch(**{"stage": 3, **keys, **PLACES[place]})


def missing() -> str:
    """Why this machine cannot run it, or "": nothing here starts a compiler by itself."""
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    if any(root.rglob("async_io.so")):
        return ""
    return (
        "DeepSpeed's op async_io is not compiled: install libaio (libaio-dev), then `python -m "
        "helpers.course.recording.nvme`, some minutes"
    )


def nvme(size: models.GPTSize, config: dict, scratch: str) -> dict:
    """Three steps of ZeRO in bf16; what a rank holds after the last of them, and which files it has written.

    Args:
        config: DeepSpeed's; wherever it says `nvme_path`, `scratch` is taken.
        scratch: a folder, which the recorder removes.

    Returns:
        {"raised": "" or what DeepSpeed raised, "losses": of the steps, "held": {category: bytes} after the
        last, "files": [[name, bytes]] of this rank}.
    """
    deepspeed.init_distributed()
    losses, folder = [], Path(scratch) / f"of-{deepspeed.comm.get_rank()}"
    with Ledger() as ledger:
        model = models.build(models.GPT, size, config=config)
        config = copy.deepcopy(config)
        for section in config["zero_optimization"].values():
            if isinstance(section, dict) and "nvme_path" in section:
                section["nvme_path"] = str(folder)
        try:
            engine = engine_of(model, config)
            ledger.watch(engine)
            three_steps(engine, size.context, losses)
        except (AssertionError, RuntimeError) as error:
            raised = f"{type(error).__name__}: {error}".replace(str(folder), "nvme_path")
            return {"raised": raised, "losses": losses, "held": {}, "files": []}
        held = ledger.snapshot("after step").categories
    files = [[path.name, path.stat().st_size] for path in sorted(folder.rglob("*")) if path.is_file()]
    return {"raised": "", "losses": losses, "held": held, "files": files}


if __name__ == "__main__":
    from deepspeed.ops.op_builder import AsyncIOBuilder

    AsyncIOBuilder().load()
