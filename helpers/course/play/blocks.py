"""A block that GPUs share, to play with: how many, over which links, of which model, with sequence
parallelism or without."""

from __future__ import annotations

from helpers.course.job.shared_block import block_bytes, block_parts
from helpers.course.play.compared import Bars, Goals, Numbers
from helpers.course.play.compared import played as of_bars
from helpers.course.play.grids import Choice
from helpers.course.play.played import Played
from helpers.course.plots.replicas import MESSAGE
from helpers.course.plots.style import owner_colour

LINKS = {"NVLink, 300 GB/s": 300e9, "a card of 50 GB/s": 50e9, "a card of 25 GB/s": 25e9}
CHOICES = {
    "gpus": Choice("GPUs", [1, 2, 4, 8], 8),
    "link": Choice("between them", list(LINKS), "NVLink, 300 GB/s"),
    "model": Choice("model", ["8 B", "70 B", "405 B"], "8 B"),
    "tokens": Choice("sequence parallelism", ["no", "yes"], "no"),
}
WORDS = (
    "Divided {divided} ms, repeated {repeated} ms, messages {messages} ms: {total} ms. One GPU takes {base}"
    " ms, so this is {times} times as fast, {used} of what as many GPUs could do."
)
GOALS: Goals = {
    "With 8 GPUs and the 8 B, use more than 50 % of them.": lambda ways, times: (
        ways["gpus"] == 8 and ways["model"] == "8 B" and times / 8 > 0.5
    ),
    "With 8 GPUs, use more than 75 %.": lambda ways, times: ways["gpus"] == 8 and times / 8 > 0.75,
    "Find a second GPU that gains less than a quarter.": lambda ways, times: (
        ways["gpus"] == 2 and times < 1.25
    ),
}


def milliseconds(gpus: int, link: str, model: str, tokens: str) -> Numbers:
    """By part."""
    found = block_parts(model)
    repeated = found["elementwise, repeated"]
    work, is_shared = sum(found.values()) - repeated, tokens == "yes"
    half = (gpus - 1) / gpus * block_bytes(model) / LINKS[link]
    return {
        "divided": 1e3 * (work + repeated * is_shared) / gpus,
        "repeated": 1e3 * repeated * (not is_shared),
        "messages": 1e3 * (10 if is_shared else 8) * half,
    }


def of_one(**ways: object) -> Numbers:
    return milliseconds(**ways | {"gpus": 1, "tokens": "no"})


def found(**ways: object) -> Numbers:
    """Milliseconds, and which part of the GPUs' work is not lost."""
    own = milliseconds(**ways)
    return own | {"used": sum(of_one(**ways).values()) / sum(own.values()) / ways["gpus"]}


BARS = Bars(
    found,
    of_one,
    called="one GPU",
    unit="ms",
    parts={"divided": owner_colour(0), "repeated": "#BBBBBB", "messages": MESSAGE},
    title="A block on 8,192 tokens, computed;",
    words=WORDS,
    goals=GOALS,
)


def shared(*names: str, **start: object) -> Played:
    """The milliseconds of a block on several GPUs, beside those of one; arguments as in `compared.played`."""
    return of_bars(BARS, CHOICES, names, start)
