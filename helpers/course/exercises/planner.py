"""`work/my_planner.py`: the learner's own planner, which grows by a function with each check that adds one.

`keeping` says how functions are kept.
"""

from __future__ import annotations

import runpy
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING

from helpers import paths
from helpers.course.exercises import keeping
from helpers.course.exercises.calling import call_with_each

if TYPE_CHECKING:
    from helpers.tools import theory

NAME = "my_planner.py"
HEAD = '''"""My planner: what a GPU holds under a plan, in bytes, and what messages add, in seconds."""

from helpers.course.exercises.planner import complete

if (yours := complete(globals())) and __name__ == "__main__":  # the course's terms where yours are missing
    print(f"{yours}. {verdict(peak)}")
'''
# {term: the lesson's module whose folded cells have the course's}: a new term is a line here.
TERMS = {
    "at_the_loss": "training_memory",
    "in_the_backward": "training_memory",
    "in_the_step": "training_memory",
    "exposed": "data_parallelism",
    "block_seconds": "tensor_parallelism",
    "bubble": "pipeline_parallelism",
    "sent": "zero_2",
}


@dataclass(frozen=True)
class Training:
    """A training that a planner is scored on.

    Attributes:
        words: which it is.
        how: "recorded" on GPUs, or "rehearsed".
        right: {term: bytes on the fullest GPU or, recorded, on rank 0}.
    """

    plan: theory.Plan
    words: str
    how: str
    right: dict[str, int]


def keep(function: FunctionType) -> str:
    """Write a function into the planner; returns a sentence."""
    return keeping.keep(function, NAME, HEAD)


def complete(names: dict[str, object]) -> str:
    """Add the course's term to a planner's names wherever the learner's is missing, so that terms call the
    learner's where there are such; returns whose they are, in words."""
    mine = [term for term in TERMS if term in names]
    for term, subject in TERMS.items():
        course = vars(import_module(f"helpers.course.exercises.solutions.{subject}"))[term]
        names.setdefault(term, FunctionType(course.__code__, names, term, course.__defaults__))
    moments = "at_the_loss", "in_the_backward", "in_the_step"
    names.setdefault("peak", lambda plan: max(names[moment](plan) for moment in moments))
    names.setdefault("verdict", verdict)
    return f"yours: {len(mine)} of {len(TERMS)}"


def verdict(peak: Callable) -> str:
    """What a planner says of the job on one H100, in a sentence."""
    from helpers.course import job
    from helpers.tools import theory
    from helpers.tools.rehearsal.reserving import OUTSIDE

    size = theory.LlamaSize.of(job.MODELS["8 B"])
    shape = {"gpus": 1, "batch": job.SEQUENCES, "sequence": job.SEQUENCE, "checkpointed": True}
    due, most = peak(theory.Plan(size=size, **shape, lean=False)), room(job.MEMORY, OUTSIDE)
    fits = "it fits" if due < most else "it does not fit"
    return f"The job on one {job.CARD}: {due / 1e9:.1f} GB of {most / 1e9:.1f}: {fits}."


def room(memory: float, outside: float) -> float:
    """Bytes of a GPU that a plan may fill: what lies outside torch's allocator is taken, and 2 % of the GPU
    stay free, for the allocator's gaps and for what a planner leaves out."""
    return 0.98 * memory - outside


def score(
    term: str, function: Callable | None = None, scope: Callable[[theory.Plan], bool] | None = None
) -> str:
    """How far a term is off in trainings that the learner has not seen, in a sentence.

    Args:
        term: what `Training.right` has.
        function: takes a `theory.Plan`; by default the one in the planner.
        scope: whether a plan is asked for; by default all are.
    """
    file = str(paths.WORK / NAME)
    answer = function or runpy.run_path(file)[term]
    off, worst, unseen = [], "", trainings(term, scope)
    with closing(
        call_with_each(lambda plan: answer(plan), [{"plan": training.plan} for training in unseen])
    ) as outcomes:
        for training, (said, failure) in zip(unseen, outcomes):
            if failure or not isinstance(said, (int, float)):
                return f"`{term}` {failure or 'returned no number'} for {training.words}."
            right = training.right[term]
            off.append(abs(said - right) / right)
            if off[-1] == max(off):
                found = f"{right / 1e9:.1f} GB were {training.how}"
                worst = f"{training.words}: {said / 1e9:.1f} GB, and {found}"
    middle, most = statistics.median(off), max(off)
    how_far = f"{middle:.1%} off in the middle, {most:.1%} at most ({worst})"
    of_each = Counter(training.how for training in unseen)
    kinds = " and ".join(f"{count} {how}" for how, count in of_each.items())
    return f"`{term}` in {kinds} trainings: {how_far}."


def trainings(term: str, scope: Callable[[theory.Plan], bool] | None = None) -> list[Training]:
    """All of which a term is known, and whose plan is in scope."""
    known = [one for one in (*recorded_trainings(), *rehearsed_trainings()) if term in one.right]
    return [one for one in known if scope is None or scope(one.plan)]


def recorded_trainings() -> Iterator[Training]:
    """Those of which a GPU's own bytes are known."""
    from helpers.course import recorded

    for run in recorded.trainings():
        if run.experiment in ("zero", "speed") and run.on_gpu and run.reports and not run.shared:
            plan, right = recorded.plan(run), {"peak": recorded.highest(run)}
            if run.experiment == "zero":
                right["states"] = sum(run.states(0).values()) - run.states(0)["buffers"]
            words = f"{run.parameters / 1e9:.1f} billion parameters, stage {plan.stage}, {run.ranks} GPUs"
            times = f"{plan.micro_batches} x {plan.micro} sequences"
            yield Training(plan, f"{words}, {times}", "recorded", right)


def rehearsed_trainings() -> Iterator[Training]:
    """The job's plans that a `theory.Plan` can say, and whose states are those between two micro-batches."""
    from helpers.course import job
    from helpers.tools import theory

    for name, way in job.PLANS.items():
        zero = way.config["zero_optimization"]
        is_other = (
            way.lora
            or way.qlora
            or way.stages
            or {"data_types", "tensor_parallel"} & set(way.config)
            or {"offload_optimizer", "overlap_comm", "stage3_prefetch_bucket_size"} & set(zero)
        )
        if is_other or type(way.checkpointing) is int or way.config["gradient_accumulation_steps"] == 1:
            continue
        plan = theory.Plan(
            size=theory.LlamaSize.of(job.MODELS[way.model]),
            gpus=way.gpus,
            batch=way.sequences,
            sequence=job.SEQUENCE,
            stage=zero["stage"],
            micro=way.config["train_micro_batch_size_per_gpu"],
            checkpointed=way.checkpointing,
            bucket=zero.get("reduce_bucket_size", theory.Plan.bucket),
            lean=zero["stage"] > 0 or "fused" in way.config["optimizer"]["params"],
        )
        states = job.states(name)
        right = {"states": sum(states.values()) - states["buffers"], "peak": job.peak(name)}
        yield Training(plan, f"the job, {name}", "rehearsed", right)
