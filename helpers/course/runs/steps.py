"""A few training steps, watched: what lessons 05 and 06 note in each rank, and the comparison of losses
afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.course.training.comparable import WITHIN, mean, words
from helpers.tools.measure.internals import wrap_instructions
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    import torch
    from deepspeed import DeepSpeedEngine, PipelineEngine
    from helpers.tools.launcher.jobs import Reports


def trained(
    engine: DeepSpeedEngine,
    batch_of: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    loss_of: Callable[[DeepSpeedEngine, torch.Tensor, torch.Tensor], torch.Tensor],
) -> dict:
    """Train a DeepSpeed engine for three steps of one micro-batch.

    Args:
        batch_of: step -> the (ids, targets) that this rank reads.
        loss_of: (engine, ids, targets) -> the loss.

    Returns:
        {"losses": of each step, "shapes": {parameter: its shape on this rank}, "forward", "backward":
        `Traffic` of the last step's two passes}.
    """
    losses = []
    for step in range(3):
        with Traffic() as forward:
            loss = loss_of(engine, *batch_of(step))
        with Traffic() as backward:
            engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    shapes = {name: tuple(parameter.shape) for name, parameter in engine.module.named_parameters()}
    return {"losses": losses, "shapes": shapes, "forward": forward, "backward": backward}


def mean_losses(reports: Sequence[Mapping]) -> list[float]:
    """The mean over the ranks of each step's loss."""
    return mean(report["losses"] for report in reports)


def same_losses(
    train: Callable[..., dict],
    runs: Mapping[str, tuple[int, int, str | None]],
    **arguments: object,
) -> dict[str, Reports]:
    """Launch several runs of one training, print their losses, and whether they equal those of another run:
    {name: what each rank returned}.

    Args:
        train: takes `arguments` and `tensor_ranks` in each rank, and returns {"losses": of each step, ...}.
        runs: {name: (ranks, tensor-parallel ranks, an earlier run whose losses it must have, or None)}.
    """
    from helpers.tools.launcher.jobs import launch

    reports, longest = {}, max(map(len, runs))
    for name, (ranks, tensor_ranks, yardstick) in runs.items():
        reports[name] = launch(train, ranks=ranks, arguments=arguments | {"tensor_ranks": tensor_ranks})
        losses, right = mean_losses(reports[name]), mean_losses(reports[yardstick or name])
        equal = all(abs(loss - other) < WITHIN for loss, other in zip(losses, right))
        verdict = f"; equal to {yardstick} within {WITHIN:g}: {'yes' if equal else 'no'}" if yardstick else ""
        print(f"{name:{longest}} losses {words(losses)}{verdict}")
    return reports


def trained_pipeline(
    engine_of: Callable[[], PipelineEngine],
    batches_of: Callable[[PipelineEngine, int], Iterator[tuple[torch.Tensor, torch.Tensor]]],
    steps: int = 3,
) -> dict:
    """Train a DeepSpeed pipeline for a few steps, and note what this rank executed, held and sent in the last
    one.

    Args:
        engine_of: makes the engine, while the ledger is open.
        batches_of: (engine, step) -> an iterator over the step's micro-batches.

    Returns:
        {"losses": of each step, "engine", "stage": its number, "executed": the instructions by name, "held":
        bytes by category after the last forward pass, "traffic": `Traffic`, "elements": of each parameter}.
    """
    losses = []
    with Ledger() as ledger:
        engine = engine_of()
        ledger.watch(engine)
        executed, held = recorded_instructions(engine, ledger)
        for step in range(steps):
            executed.clear()
            with Traffic() as traffic:
                losses.append(engine.train_batch(data_iter=batches_of(engine, step)).item())
    elements = [parameter.numel() for parameter in engine.module.parameters()]
    report = {"losses": losses, "engine": engine, "stage": engine.stage_id, "executed": list(executed)}
    return report | {"held": held[-1], "traffic": traffic, "elements": elements}


def recorded_instructions(engine: PipelineEngine, ledger: Ledger) -> tuple[list[str], list[dict[str, int]]]:
    """Two lists that fill while a pipeline's engine works: the instructions executed, and the bytes by
    category after each forward pass."""
    executed, held = [], []

    def recorded(name, instruction):
        def execute(*arguments, **options):
            instruction(*arguments, **options)
            executed.append(name)
            if name == "ForwardPass":
                _wait_until_nothing_dies(ledger)
                held.append(ledger.categories())

        return execute

    wrap_instructions(engine, recorded)
    return executed, held


def _wait_until_nothing_dies(ledger):
    """Until no storage was born or died for 10 ms, at most a second: a thread that sends keeps a tensor a
    moment longer than who sent it.  A snapshot's barrier cannot stand here: the ranks are at different
    instructions."""
    end, before = time.monotonic() + 1, None
    while ledger.clock != before and time.monotonic() < end:
        before = ledger.clock
        time.sleep(0.01)
