"""Lesson 07's trainings by hand, in a rank: what they hold and send is counted, and faults are planted in
their step.  And the end of a step of the job, as it is drawn before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from helpers.course.exercises.ladders import rebound
from helpers.course.exercises.solutions.zero_1 import reduce_to_owner_solution, zero_1_step_solution
from helpers.course.training.comparable import gathered, learned, own_rows, weights_of
from helpers.tools.measure.carried import Carried
from helpers.tools.measure.held import MODEL_STATES
from helpers.tools.measure.ledger import Ledger

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from helpers.course.plots.style import Plot
    from helpers.course.plots.tables import Table

Step = Callable[..., torch.Tensor]  # as a learner writes `zero_1_step`


def one_update(engine: DeepSpeedEngine) -> None:
    """One step of an engine, in all its micro-batches, on the first step's sequences."""
    for _ in range(engine.gradient_accumulation_steps()):
        engine.backward(engine(*own_rows(0, engine.device)))
        engine.step()


class HandMade:
    """The report of a training by ZeRO-1 that is written by hand, in a rank; enter it around the steps,
    `look` between a backward pass and the update, and `add` each step to it.

    From the second step on it counts what messages carry, as {category: elements} of one step: what the
    optimizer's first step makes has no name before.

    Args:
        model: with parameters in a flat tensor.
        master: of shape (S,), fp32: this rank's shard, all that `optimizer` updates.
    """

    def __init__(
        self, model: torch.nn.Module, master: torch.nn.Parameter, optimizer: torch.optim.Optimizer
    ) -> None:
        self._made, self.losses, self.norms = (model, optimizer, master), [], []
        self.start, self.held = weights_of(model), {}

    def __enter__(self) -> HandMade:
        self._open = ExitStack()
        self._ledger = self._open.enter_context(Ledger())
        model, optimizer, master = self._made
        self._ledger.watch(model, optimizer).label("master weights", master)
        self._carried = Carried(self._ledger)
        return self

    def look(self, loss: float) -> float:
        """Count what this rank holds of the model states after a backward pass, whose loss is returned; what
        was found last is reported."""
        now = self._ledger.snapshot("gradients are there")
        self.held = {category: now[category] for category in MODEL_STATES}
        return loss

    def add(self, loss: float, norm: torch.Tensor | float) -> None:
        """Note a step: this rank's loss, and the norm of the whole gradient before clipping."""
        self.losses.append(loss)
        self.norms.append(float(norm))
        if len(self.losses) == 1:
            self._open.enter_context(self._carried)

    def __exit__(self, *problem: object) -> None:
        self._open.close()

    def learned(self) -> dict:
        """{"losses", "norms" of each step, "weights", "gradients", "start", "masters": tensors of the whole,
        "carried": {category: elements} of a step, "held": {category: bytes}}; a collective."""
        model, optimizer, master = self._made
        counted = len(self.losses) - 1
        carried = {kind: sent / counted for kind, sent in self._carried.elements.items()}
        found = {"losses": self.losses, "norms": self.norms, "start": self.start, "carried": carried}
        found["held"] = self.held
        masters = gathered(master.detach(), len(self.start))
        return found | learned(model, optimizer, master) | {"masters": masters}


# --- faults


def undivided(parameters: list[torch.nn.Parameter], flat: torch.Tensor) -> torch.Tensor:
    """`reduce_to_owner` with a bug: owners get the sum of the ranks' gradients, not the mean."""
    import deepspeed.comm as comm

    return reduce_to_owner_solution(parameters, flat) * comm.get_world_size()


def planted(step: Step, **rungs: Callable) -> Step:
    """The step with faulty functions in the places of some that it calls by name; the course's step where it
    calls none by these."""
    calls_all = set(rungs) <= set(step.__code__.co_names)
    return rebound(step if calls_all else zero_1_step_solution, rungs)


def no_gather(
    flat: torch.Tensor, master: torch.nn.Parameter, optimizer: torch.optim.Optimizer, gradient: torch.Tensor
) -> None:
    """`step_and_gather` with a bug: each rank writes its own shard into its own model, and sends nothing."""
    import deepspeed.comm as comm

    master.grad = gradient
    optimizer.step()
    flat.chunk(comm.get_world_size())[comm.get_rank()].copy_(master.detach())
    master.grad = None


def masters_reread(
    flat: torch.Tensor, master: torch.nn.Parameter, optimizer: torch.optim.Optimizer, gradient: torch.Tensor
) -> None:
    """`step_and_gather` with a bug: the master begins each step as a copy of the model's rounded weights."""
    import deepspeed.comm as comm

    master.data.copy_(flat.chunk(comm.get_world_size())[comm.get_rank()])
    master.grad = gradient
    optimizer.step()
    comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))
    master.grad = None


# --- the end of a step of the job


def end_of_step(half: float, update: float, ranks: int) -> Plot:
    """What follows the backward pass where no message hides, on the first two ranks and the last.

    Args:
        half, update: ms of a reduce-scatter or an all-gather of all parameters, and of their update.
    """
    from helpers.course import plots

    end = ("backward", "end of the\nbackward pass", 60.0, 1.0)
    whole = [("all-reduce", "all-reduce", 2 * half, 1.0), ("optimizer", "update", update, 1.0)]
    shared = [("reduce-scatter", "reduce-scatter", half, 1.0)]
    shared += [("optimizer", "update of\na shard", update / ranks, 1 / ranks)]
    shared += [("all-gather", "all-gather", half, 1.0)]
    steps = {}
    for plan, pieces in {"data parallelism": whole, "ZeRO-1": shared}.items():
        after = sum(width for _, _, width, _ in pieces)
        steps[f"{plan}: {after:.0f} ms after the backward pass"] = [end, *pieces]
    title = "Identical updates on all GPUs, or one update that they share"
    return plots.step_strips(steps, [0, 1, ranks - 1], title, "ms, computed for the job", total=ranks)


def end_with_overlap(half: float, update: float, ranks: int, block: float, last: float) -> Plot:
    """The same where gradients leave block by block, beside the backward passes of the last three blocks.

    Args:
        block: the part of all parameters that a block has.
        last: the part of which the gradients are final only when the backward pass ends.
    """
    from helpers.course import plots

    each, blocks = 20.0, 3  # milliseconds of a block's backward pass
    passes = [("backward", f"block {blocks - at}", each * at, each * (at + 1)) for at in range(blocks)]
    over, rows, ends = each * blocks, {}, {}
    for plan, kind, long, lasts, gathers in (
        ("data parallelism", "all-reduce", 2 * half, update, 0.0),
        ("ZeRO-1", "reduce-scatter", half, update / ranks, half),
    ):
        sent = [(kind, "", each * at, each * at + block * long) for at in range(blocks)]
        sent += [(kind, "", over, begins := over + last * long)]
        updated = begins + lasts
        ends[plan] = updated + gathers - over
        words = f"update, until {ends[plan]:.0f} ms after the pass"
        work = [*passes, ("optimizer", "" if gathers else words, begins, updated)]
        if gathers:
            sent += [("all-gather", f"until {ends[plan]:.0f} ms after", updated, updated + gathers)]
        rows |= {f"{plan}:\nwork": work, f"{plan}:\nmessages": sent}
    replicated, sharded = (f"{end:.0f} ms" for end in ends.values())
    title = f"With ideal overlap a step ends {replicated} after its backward pass, with ZeRO-1 {sharded}"
    return plots.timeline(rows, title, "ms, computed for the job")


def accounts_of_the_end(half: float, update: float, ranks: int, last: float) -> Table:
    """The job's time after the backward pass in three ways, and the messages that nothing hides: as the two
    pictures above have it, and as DeepSpeed was rehearsed, at the fastest."""
    from helpers.course import job, plots

    own, both = update / ranks, ("stage 0", "stage 1")
    times = {
        "nothing hides": ((update, 2 * half), (own, 2 * half)),
        "ideal overlap": ((update, last * 2 * half), (own, last * half + half)),
        "DeepSpeed, rehearsed": [after_the_pass(plan) for plan in both],
    }
    rows = []
    for way, pair in times.items():
        plans = zip(("data parallelism", "ZeRO-1"), pair)
        row = {plan: f"{work:.0f} + {sent:.0f} = {work + sent:.0f}" for plan, (work, sent) in plans}
        rows.append({"ms": way} | row | {"ZeRO-1 gains": round(sum(pair[0])) - round(sum(pair[1]))})
    whole = (sum(job.step_times(plan)[0].parts.values()) for plan in both)
    said = "a whole step by DeepSpeed: {:.2f} s, with ZeRO-1 {:.2f} s".format(*whole)
    return plots.table(rows, f"Update + exposed messages ({said})")


def after_the_pass(plan: str) -> tuple[float, float]:
    """Rehearsed milliseconds of a plan's update, and of its messages, none of which hides."""
    from helpers.course import job

    passes = job.step_times(plan)[0].passes
    return 1e3 * passes["step"].work, 1e3 * sum(one.exposed for one in passes.values())
