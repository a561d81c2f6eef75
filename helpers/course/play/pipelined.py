"""Pipeline schedules to play with: what each stage does when, and how many micro-batches it holds."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from functools import cache

from helpers.course.play.grids import Choice, Grid, chosen_from, packed
from helpers.course.play.orders import SCHEDULES
from helpers.course.play.played import Played
from helpers.course.play.schedule_picture import LEFT, RIGHT, ROW, TOP, draw
from helpers.course.plots.drawing import ink
from helpers.course.plots.schematics_pipeline import ACTIONS
from helpers.tools.theory.schedules import idle_fraction, most_in_flight, replay

STAGES = 4
TICKS = {"F": 2, "B": 4, "I": 2, "W": 2}  # a backward pass takes as long as two forward passes
SLOW = 1.5  # times as long
AXES = (48, 72, 96, 144, 216)  # ticks at the right edge
NONE, ANY = "none", "any number"
TITLE = f"A pipeline of {STAGES} stages,"
WORDS = "{idle} % idle, {total} forward passes long; each stage holds at most {most} micro-batches."
NOW = "At {time}: {held} in flight."
CHOICES = {
    "schedule": Choice("schedule", list(SCHEDULES), "1F1B"),
    "micro": Choice("micro-batches", [4, 8], 8),
    "slow": Choice(f"slow stage ({SLOW:g} times as long)", [NONE, *range(STAGES)], NONE),
    "cap": Choice("a stage may hold", [ANY, 3, 2, 1], ANY),
}


def ticks(slow: object) -> list[dict[str, int]]:
    """{kind: ticks} of each stage."""
    return [
        {kind: int(SLOW * each) if stage == slow else each for kind, each in TICKS.items()}
        for stage in range(STAGES)
    ]


@cache
def timelines(schedule: str, micro: int, slow: object, cap: object) -> list[list[tuple]]:
    """Of each stage (kind, stage, micro, start, end), in ticks."""
    most = micro if cap == ANY else cap
    orders = [SCHEDULES[schedule](STAGES, stage, micro, most) for stage in range(STAGES)]
    lasts = {(kind, stage): each for stage, takes in enumerate(ticks(slow)) for kind, each in takes.items()}
    return replay(orders, lasts)


def events(found: list[list[tuple]]) -> list[tuple]:
    """All of them, in the order in which `schedule.js` has their starts."""
    return [event for row in found for event in row]


def in_flight(row: list[tuple], time: float) -> int:
    """Micro-batches that a stage holds from a time on."""
    released = "W" if any(kind == "W" for kind, *_ in row) else "B"
    began = sum(kind == "F" and start <= time for kind, *_, start, _ in row)
    return began - sum(kind == released and end <= time for kind, *_, end in row)


def cell(**ways: object) -> dict[str, int]:
    """Of one combination: its length in ticks, what is idle in 0.1 %, and what each stage holds at most."""
    found = timelines(**ways)
    total = round(max(end for *_, end in events(found)))
    most = {f"most {stage}": most_in_flight([event[:3] for event in row]) for stage, row in enumerate(found)}
    idle = round(1000 * idle_fraction(found))
    return most | {"total": total, "idle": idle, "axis": bisect.bisect_left(AXES, total)}


def sentence(grid: Grid, at: Mapping[str, int], time: int) -> str:
    """What schedule.js says, too; `time` in ticks."""
    found = timelines(**{name: grid.choices[name].options[place] for name, place in at.items()})
    most = ", ".join(str(grid(f"most {stage}", at)) for stage in range(STAGES))
    words = {"idle": f"{grid('idle', at) / 10:.1f}", "total": f"{grid('total', at) / 2:.1f}", "most": most}
    held = ", ".join(str(in_flight(row, time)) for row in found)
    now = NOW.format(time=f"{time / 2:.1f}", held=held)
    return f"{TITLE} {grid.chosen(at)}: {WORDS.format(**words)} {now}"


def schedule(*names: str, **start: object) -> Played:
    """Pipeline schedules of four stages, with play and pause; a backward pass takes twice a forward pass.

    Args:
        names: what the reader chooses, names in `CHOICES`; by default all of them.
        start: the option of each name at the start, also of those that stay so.

    Raises:
        ValueError: a name or an option is not known.
    """
    choices = chosen_from(CHOICES, names, start)
    grid, first = Grid(choices, cell), {name: choice.start for name, choice in choices.items()}
    every = [dict(zip(choices, way)) for way in itertools.product(*(one.options for one in choices.values()))]
    slow = choices["slow"]
    orders = [events(timelines(**ways)) for ways in every if ways["slow"] == slow.options[0]]
    total = grid("total", grid.start)
    data = grid.data | {
        **{"title": TITLE, "words": WORDS, "now": NOW, "stages": STAGES, "axes": AXES},
        "looks": {kind: (colour, ink(colour)) for kind, (colour, _) in ACTIONS.items()},
        "starts": [packed([round(event[3]) for event in events(timelines(**ways))]) for ways in every],
        "order": ["".join(f"{kind}{stage}{micro}" for kind, stage, micro, *_ in one) for one in orders],
        "place": {"left": LEFT, "right": RIGHT, "top": TOP, "row": ROW},
        "ticks": [ticks(option) for option in slow.options],
        **{"last": total, "turn": total, "each": 350, "of": "time"},
    }
    return Played(
        "numbers choices stepper schedule",
        draw(timelines(**first), grid, AXES),
        sentence(grid, grid.start, total),
        data,
    )
