"""The training by DeepSpeed or by torch alone, in a rank: what it holds at the moments of a step, and what it
sends, is counted."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import torch
from helpers.course import models
from helpers.course.training.comparable import (
    SEQUENCES,
    STEPS,
    gradients_of,
    masters_of,
    own_rows,
    weights_of,
)
from helpers.tools.measure.carried import Carried
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

MOMENTS = ("between micro-batches", "after backward", "after step")


def one_step(
    engine: DeepSpeedEngine,
    ledger: Ledger,
    rows: Iterable[torch.Tensor],
    after_forward: bool = False,
    look: bool = True,
) -> float:
    """A step of a DeepSpeed engine, in its micro-batches, with a snapshot at each of `MOMENTS` and before
    ("start"); the mean loss.

    With `after_forward` there is one before the last backward pass too.  Without `look` the moments are only
    marked, and ranks do not wait for each other.
    """
    total, count = 0.0, engine.gradient_accumulation_steps()
    note = ledger.snapshot if look else ledger.mark
    note("start")
    for micro, (ids, targets) in enumerate(zip(*(part.chunk(count) for part in rows)), 1):
        ledger.mark("forward")
        loss = engine(ids, targets)
        if after_forward and micro == count:
            note("after forward")
        ledger.mark("backward")
        engine.backward(loss)
        total += loss.item() / count
        del loss
        note("after backward" if micro == count else "between micro-batches")
        if micro == count:
            ledger.mark("step")
        engine.step()
    note("after step")
    return total


def _report(losses, model, optimizer, traffic, carried, ledger):
    """What a counted training returns; without an optimizer no gradients."""
    return {
        "losses": losses,
        "carried": dict(carried.elements),
        "weights": weights_of(model),
        "gradients": None if optimizer is None else gradients_of(model, optimizer),
        "traffic": traffic,
        "moments": {snapshot.moment: snapshot for snapshot in ledger.snapshots},
        "history": ledger.history("after backward", "after step"),
        "whole history": ledger.history("start", "after step"),
    }


def train(
    config: dict,
    size: models.GPTSize = models.TINY,
    checkpointing: bool = False,
    after_forward: bool = False,
    early: bool = False,
    steps: int = STEPS,
    make: Callable[..., torch.optim.Optimizer] | None = None,
    lr: float = 1e-3,
) -> dict:
    """The training by DeepSpeed, in a rank.

    Args:
        config: DeepSpeed's.  All train on the same where its micro-batches have SEQUENCES / (ranks x
            accumulation) sequences.
        after_forward: take a snapshot "after forward", of the last micro-batch.
        early: partition a model for stage 3 as it is built (lesson 10), and not only in `initialize`.
        steps: optimizer steps.  Memory and messages are the same in each from the second on, but in the
            second stage 3 also compares among the ranks in which order they use their parameters.
        make: makes the optimizer from `(parameters, lr=lr)`, for a `config` that names none.

    Returns:
        {"losses": of this rank, "norms": of the whole gradient in each step (None where DeepSpeed computes
        none), "weights", "masters" in fp32 of stages 1 and 2 in bf16, and "gradients" of an fp32 model with
        Adam: tensors, and of the last step "traffic":
        a `Traffic`, "carried": the elements of a `Carried`, "moments": {moment: `Snapshot`}, "history": the
        `History` of its optimizer step, "whole history": that of its passes too}.
    """
    import deepspeed

    losses, norms = [], []
    with Ledger() as ledger:
        model = models.build(models.GPT, size, checkpointing=checkpointing, config=config if early else None)
        whose = {"optimizer": make(model.parameters(), lr=lr)} if make else {}
        given = {"model": model, "model_parameters": model.parameters(), "config": config, **whose}
        with redirect_stdout(io.StringIO()):  # its BF16_Optimizer prints the host's memory
            engine, *_ = deepspeed.initialize(**given)
        ledger.watch(engine)
        for step in range(steps):
            with Traffic() as traffic, Carried(ledger) as carried:
                rows = own_rows(step, engine.device, engine.train_batch_size())
                losses.append(one_step(engine, ledger, rows, after_forward, look=step == steps - 1))
            norm = engine.get_global_grad_norm()
            norms.append(None if norm is None else float(norm))  # a tensor that is kept would count
            del norm
    optimizer = None if engine.bfloat16_enabled() else engine.optimizer
    report = _report(losses, model, optimizer, traffic, carried, ledger)
    if engine.bfloat16_enabled() and engine.zero_optimization_stage() in (1, 2):
        report["masters"] = masters_of(model)
    return report | {"norms": None if None in norms else norms}


def train_each(configs: Mapping[str, dict], **options: object) -> dict[str, dict]:
    """{name: `train(config, **options)`} of several configurations, one after the other in the same ranks."""
    reports = {}
    for name, config in configs.items():
        reports[name] = train(config, **options)
        gc.collect()
        gc.freeze()  # DeepSpeed keeps something of every engine, which no later collection needs to visit
    return reports


def train_plain(
    wrap: Callable[[torch.nn.Module], Callable[..., torch.Tensor]],
    size: models.GPTSize = models.TINY,
    model: Callable[[models.GPTSize], torch.nn.Module] = models.GPT,
    sequences: int = SEQUENCES,
) -> dict:
    """The training of `model(size)` by torch alone, in a rank, with AdamW in one micro-batch per step.

    Args:
        wrap: function of the model, on its device, that returns what is called with a batch: the same model
            with `fully_shard` applied to it, or one around it as `DistributedDataParallel`.
        sequences: of a step, over all ranks.

    Returns:
        As `train`, with a snapshot "after forward".
    """
    import deepspeed

    deepspeed.init_distributed()
    losses, device = [], deepspeed.get_accelerator().current_device_name()
    with Ledger() as ledger:
        built = models.build(model, size).to(device)
        called = wrap(built)
        adam = torch.optim.AdamW(built.parameters(), lr=1e-3)
        ledger.watch(built, adam)
        for step in range(STEPS):
            note = ledger.snapshot if step == STEPS - 1 else ledger.mark
            note("start")
            with Traffic() as traffic, Carried(ledger) as carried:
                ledger.mark("forward")
                loss = called(*own_rows(step, device, sequences))
                note("after forward")
                ledger.mark("backward")
                loss.backward()
                losses.append(loss.item())
                del loss
                note("after backward")
                ledger.mark("step")
                adam.step()
                adam.zero_grad()
            note("after step")
    return _report(losses, built, adam, traffic, carried, ledger)
