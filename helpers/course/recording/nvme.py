"""Optimizer states on a disk by DeepSpeed's own means, on a CPU: the experiment `nvme`.

`python -m helpers.course.recording.nvme` compiles what it needs, once: DeepSpeed's op async_io, which takes
minutes and the library libaio.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.course.recording.experiments import _rows

if TYPE_CHECKING:
    from helpers.course.models import GPTSize


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


def nvme(size: GPTSize, config: dict, scratch: str) -> dict:
    """Three steps of ZeRO in bf16; what a rank holds after the last of them, and which files it has written.

    Args:
        size: of the GPT, a `GPTSize`.
        config: DeepSpeed's; wherever it says `nvme_path`, `scratch` is taken.
        scratch: a folder, which the recorder removes.

    Returns:
        {"raised": "" or what DeepSpeed raised, "losses": of the steps, "held": {category: bytes} after the
        last, "files": [[name, bytes]] of this rank}.
    """
    import deepspeed
    from helpers.course import models
    from helpers.tools.measure.ledger import Ledger

    deepspeed.init_distributed()
    losses, folder = [], Path(scratch) / f"of-{deepspeed.comm.get_rank()}"
    with Ledger() as ledger:
        model = models.build(models.GPT, size, config=config)
        try:
            config = _in_folder(config, folder)
            engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
            ledger.watch(engine)
            for step in range(3):
                loss = engine(*_rows(step, size.context, engine.device))
                engine.backward(loss)
                losses.append(loss.item())
                del loss
                engine.step()
        except (AssertionError, RuntimeError) as error:
            raised = f"{type(error).__name__}: {error}".replace(str(folder), "nvme_path")
            return {"raised": raised, "losses": losses, "held": {}, "files": []}
        held = ledger.snapshot("after step").categories
    files = [[path.name, path.stat().st_size] for path in sorted(folder.rglob("*")) if path.is_file()]
    return {"raised": "", "losses": losses, "held": held, "files": files}


def _in_folder(config, folder):
    config = copy.deepcopy(config)
    for section in config["zero_optimization"].values():
        if isinstance(section, dict) and "nvme_path" in section:
            section["nvme_path"] = str(folder)
    return config


if __name__ == "__main__":
    from deepspeed.ops.op_builder import AsyncIOBuilder

    AsyncIOBuilder().load()
