"""The job's budget to play with: memory of the fullest GPU against seconds of a step."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping

from helpers.course.job.reference import MEMORY
from helpers.course.play.budget_picture import CATEGORIES, draw
from helpers.course.play.grids import Choice, Grid, chosen_from
from helpers.course.play.llama_seconds import SIZE, TOKENS
from helpers.course.play.llama_step import MOMENTS, PARTS
from helpers.course.play.outcomes import REFUSALS, Outcome
from helpers.course.play.played import Played

SEQUENCE_CHOICES = [4096, 8192, 16384, 32768]  # with fewer, the time to issue operators would count
TITLE = f"Llama-3-8B, bf16, Adam, {TOKENS:,} tokens a step; the fullest GPU."
WORDS = "{fits}: {total} of {memory} GB, {moment}. {seconds} to {slowest} s a step."
VERDICTS = ("It does not fit", "It fits")
AXES = (4, 8, 12, 16, 24, 40, 80, 120)  # seconds at the right edge


Goals = Mapping[str, Callable[[Outcome], bool]]
GOALS: Goals = {
    "Make it fit on 8 GPUs at stage 1.": lambda now: now.step.gpus == 8 and now.step.stage == 1,
    "Sum gradients in fp32 on 8 GPUs.": lambda now: now.step.gpus == 8 and now.step.sums == "fp32",
    "On 8 GPUs, take less than 8 s at the fastest.": lambda now: now.step.gpus == 8 and now.fastest < 8,
    "Fit sequences of 32,768 tokens.": lambda now: now.step.sequence == 32768,
}


def on_hosts(gpus: int) -> str:
    """A number of GPUs, with its hosts where there are several."""
    return f"{gpus} on {gpus // 8} hosts" if gpus > 8 else str(gpus)


CHOICES = {
    "stage": Choice("ZeRO stage", [0, 1, 2, 3], 0),
    "gpus": Choice("GPUs", [1, 2, 4, 8, 16, 32, 64], 8, on_hosts),
    "micro": Choice("sequences of a micro-batch", [1, 2, 4], 1),
    "checkpointed": Choice(f"checkpointed blocks (of {SIZE.layers})", [0, 20, SIZE.layers], 0),
    "sums": Choice("gradients summed in", ["bf16", "fp32"], "bf16"),
    "sequence": Choice("tokens of a sequence", SEQUENCE_CHOICES, 8192, "{:,}".format),
}


def tenths(amount: float) -> int:
    """A tenth of a unit is all that is shown."""
    return round(10 * amount)


class Budgets(Grid):
    """The grid of the figure.  Bytes are in 0.1 GB, seconds in 0.1 s."""

    def __init__(self, choices: Mapping[str, Choice], goals: Goals) -> None:
        self.goals, self.reached = goals, 0  # a bit for each goal that some choice reaches
        super().__init__(choices | {"moment": Choice("", range(len(MOMENTS)), 0)}, self.cell)
        for place, goal in enumerate(goals):
            if not self.reached >> place & 1:
                raise ValueError(f"no choice reaches the goal {goal!r}: give more to choose from")

    def cell(self, moment: int, **ways: object) -> dict[str, int]:
        """One combination at one of the moments."""
        now, parts = Outcome.of(**ways), {}
        at_moment, fullest = now.moments[moment], max(now.totals)
        parts |= {name: tenths(at_moment.get(name, 0) / 1e9) for name in CATEGORIES}
        parts |= {name: tenths(now.seconds[name]) for name in PARTS}
        longest = max(Outcome.of(**ways | {"micro": 1, "checkpointed": SIZE.layers}).slowest, now.slowest)
        goals = sum(2**place for place, goal in enumerate(self.goals.values()) if now.fits and goal(now))
        self.reached |= goals
        return {
            **parts,
            **{
                "goals": goals,
                "refused": now.refusal,
                "fits": now.fits,
                "fullest at": now.totals.index(fullest),
            },
            **{"total": tenths(fullest / 1e9), "fastest": tenths(now.fastest)},
            **{"slowest": tenths(now.slowest), "axis": bisect.bisect_left(AXES[:-1], longest)},
        }

    def found(self, at: Mapping[str, int]) -> dict[str, str]:
        """What `WORDS` needs; `at` has a place for each choice but the moment."""
        at = {**at, "moment": 0}
        numbers = {"total": "total", "seconds": "fastest", "slowest": "slowest"}
        told = {name: f"{self(column, at) / 10:.1f}" for name, column in numbers.items()}
        told |= {"fits": VERDICTS[self("fits", at)], "moment": MOMENTS[self("fullest at", at)]}
        return told | {"memory": f"{MEMORY / 1e9:.1f}"}

    def sentence(self, at: Mapping[str, int]) -> str:
        """What `budget.js` says, too."""
        said = REFUSALS[self("refused", {**at, "moment": 0})] or WORDS.format(**self.found(at))
        return f"{TITLE} {self.chosen(at)}. {said}"


def budget(*names: str, goals: Goals = GOALS, **start: object) -> Played:
    """Memory of the fullest GPU by name, and the seconds of a step, of the course's job.

    Args:
        names: what the reader chooses, names in `CHOICES`; by default all of them.
        goals: {words: a function of an `Outcome` that fits}.
        start: the option of each name at the start, also of those that stay so.

    Raises:
        ValueError: a name or an option is not known, or no choice reaches a goal.
    """
    grid = Budgets(chosen_from(CHOICES, names, start), goals)
    data = grid.data | {"title": TITLE, "words": WORDS, "verdicts": VERDICTS, "refusals": REFUSALS}
    data |= {"moments": MOMENTS, "goals": list(goals), "categories": CATEGORIES, "parts": PARTS}
    data |= {"memory": MEMORY / 1e9, "axes": AXES}
    return Played("numbers choices budget", draw(grid, AXES), grid.sentence(grid.start), data)
