"""Runs that stop and go on: an engine at its beginning, some of its steps, and the checkpoint that any number
of ranks can load.

Lesson 10 runs it in ranks, on the same sequences as `training`."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING

from helpers.course import models
from helpers.course.training.comparable import mean as mean
from helpers.course.training.comparable import own_rows
from helpers.course.training.comparable import words as words

if TYPE_CHECKING:
    import torch
    from deepspeed import DeepSpeedEngine


def start(config: dict, size: models.GPTSize) -> DeepSpeedEngine:
    """A DeepSpeed engine of a GPT of this size, at its beginning; at stage 3 partitioned as it is built."""
    import deepspeed

    model = models.build(models.GPT, size, config=config)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def steps(
    engine: DeepSpeedEngine,
    first: int,
    last: int,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> list[float]:
    """Steps `first` to `last` - 1; the loss of each on this rank's rows.  A model that returns logits needs
    `loss_of(logits, targets)`."""
    losses = []
    for step in range(first, last):
        ids, targets = own_rows(step, engine.device)
        loss = loss_of(engine(ids), targets) if loss_of else engine(ids, targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


class Batches:
    """This rank's rows of one batch after another; `position` counts the batches that were taken."""

    def __init__(self):
        self.position = 0

    def next(self, engine: DeepSpeedEngine) -> tuple[torch.Tensor, torch.Tensor]:
        self.position += 1
        return own_rows(self.position - 1, engine.device)


def go_on(run: Mapping) -> dict[str, list[float]]:
    """Four steps of a run, a dict with "engine", "adam", "schedule" and "batches": {"losses" of this rank,
    "rates": its learning rates}."""
    losses, rates = [], []
    for _ in range(4):
        rates.append(run["adam"].param_groups[0]["lr"])
        loss = run["engine"](*run["batches"].next(run["engine"]))
        run["engine"].backward(loss)
        run["engine"].step()
        run["schedule"].step()
        losses.append(loss.item())
    return {"losses": losses, "rates": rates}


def to_universal(folder: str | PathLike, source: str, target: str) -> None:
    """DeepSpeed's `ds_to_universal` in this process, without what it prints: the checkpoint folder/source
    becomes the universal one folder/target."""
    from deepspeed.checkpoint import ds_to_universal

    options = Namespace(
        input_folder=f"{folder}/{source}",
        output_folder=f"{folder}/{target}",
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with open(os.devnull, "w") as no, contextlib.redirect_stdout(no), contextlib.redirect_stderr(no):
        ds_to_universal.main(options)
