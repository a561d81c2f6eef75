"""Hosts and cables to play with: the order of the axes and their sizes, what crosses the cables, and with
whom a rank shares what."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from helpers import theory
from helpers.course.job.reference import EACH, HOSTS, MODELS, SEQUENCE, SEQUENCES
from helpers.course.play.grids import Choice, Grid, chosen_from
from helpers.course.play.played import Played
from helpers.course.play.rack_picture import AXES, draw
from helpers.course.plots.drawing import ink
from helpers.tools.theory.layers import BF16

RANKS = HOSTS * EACH
SIZE = theory.LlamaSize.of(MODELS["70 B"])
LINK = theory.reference_cluster(HOSTS).link * EACH  # bytes per second that a host sends to others
EXPERTS, CHOSEN = 8, 2  # of a block, and of a token
TITLE = f"Llama-3-70B on {HOSTS} hosts of {EACH} GPUs, {SEQUENCES} sequences of {SEQUENCE:,} tokens a step;"
WORDS = (
    "Data parallel ranks d = {d}. A host sends {total} GB to others in a step: {pipe} for pipe, {data} for"
    f" data, {{model}} for model, {{expert}} for experts; that takes {{seconds}} s at {LINK / 1e9:g} GB/s."
)
REFUSALS = ("", "There is no such plan: d = {d}, and e must divide it.")
SIZES = [1, 2, 4, 8]
CHOICES = {
    "order": Choice(
        "axes, the outermost first:",
        [", ".join(order) for order in itertools.permutations(("pipe", "data", "model"))],
        "model, data, pipe",
    ),
    "model": Choice("model t", SIZES, 8),
    "pipe": Choice("pipe p", SIZES, 4),
    "expert": Choice(f"experts e ({EXPERTS} in a block)", SIZES, 1),
}


def groups(order: str, model: int, pipe: int, expert: int) -> dict[str, list[list[int]]]:
    """{axis: groups of ranks}; each expert group is e neighbours along the data axis."""
    sizes = {"pipe": pipe, "data": RANKS // (model * pipe), "model": model}
    axes = {name: sizes[name] for name in order.split(", ")}
    split = {}
    for name, size in axes.items():
        split |= {"outer": size // expert, "expert": expert} if name == "data" else {name: size}
    found = {name: theory.groups_along(name, axes) for name in axes}
    return found | {"expert": theory.groups_along("expert", split)}


def scattered_bytes(found: Sequence[Sequence[int]], sent: float) -> float:
    """Bytes that leave a host, all hosts together, where a rank sends as much to each other of its group, all
    in all `sent`."""
    pairs = (pair for group in found for pair in itertools.permutations(group, 2))
    crossing = sum(here // EACH != there // EACH for here, there in pairs)
    return crossing * sent / max(1, len(found[0]) - 1)


def leaving(order: str, model: int, pipe: int, expert: int) -> dict[str, float]:
    """{axis: bytes of a step that a host sends to others, the mean}.  Each of t ranks sends its part of the
    tokens to experts; the gradients of experts beyond the dense model's are left out."""
    found = groups(order, model, pipe, expert)
    replicas = RANKS // (model * pipe)
    plan = {"pipe": pipe, "data": replicas, "model": model}
    sent = theory.sent_by_axis(plan, SIZE, 1, SEQUENCE, SEQUENCES, BF16)
    out = {name: theory.cable_bytes(found[name], sent[name], EACH, name == "pipe") for name in plan}
    capacity = theory.expert_capacity(SEQUENCE, EXPERTS, CHOSEN)
    message = theory.all_to_all_bytes(EXPERTS, capacity, SIZE.width, BF16) / model
    each = theory.expert_parallel_wire_bytes(SIZE.layers // pipe, message, expert)
    out["expert"] = scattered_bytes(found["expert"], SEQUENCES / replicas * each)
    return {name: size / HOSTS for name, size in out.items()}


class Racks(Grid):
    """The grid of the figure, in 0.1 GB and 0.01 s, and who is in which group: `letters` has a text for each
    way to divide the ranks, with a letter of each rank's group, and a column says which text is an axis's."""

    def __init__(self, choices: Mapping[str, Choice]) -> None:
        self.letters: list[str] = []
        super().__init__(choices, self.cell)

    def cell(self, **ways: object) -> dict[str, int]:
        """One combination."""
        replicas = RANKS // (ways["model"] * ways["pipe"])
        refused = replicas % ways["expert"] != 0
        ways = ways | ({"expert": 1} if refused else {})
        out, found = leaving(**ways), groups(**ways)
        cells = {name: round(out[name] / 1e8) for name in AXES}
        cells |= {f"groups {name}": self.place(found[name]) for name in AXES}
        total = {"total": round(sum(out.values()) / 1e8), "seconds": round(100 * sum(out.values()) / LINK)}
        return cells | total | {"d": replicas, "refused": refused}

    def place(self, found: Sequence[Sequence[int]]) -> int:
        """Of these groups among the letters."""
        of = {rank: chr(48 + place) for place, group in enumerate(found) for rank in group}
        letters = "".join(of[rank] for rank in range(RANKS))
        if letters not in self.letters:
            self.letters.append(letters)
        return self.letters.index(letters)

    def partners(self, at: Mapping[str, int], rank: int) -> dict[str, list[int]]:
        """{axis: the others of this rank's group}."""
        found = {}
        for name in AXES:
            letters = self.letters[self(f"groups {name}", at)]
            found[name] = [one for one in range(RANKS) if letters[one] == letters[rank] and one != rank]
        return found

    def found(self, at: Mapping[str, int]) -> dict[str, str]:
        """What `WORDS` needs."""
        told = {name: f"{self(name, at) / 10:.1f}" for name in (*AXES, "total")}
        return told | {"seconds": f"{self('seconds', at) / 100:.2f}", "d": str(self("d", at))}

    def sentence(self, at: Mapping[str, int], rank: int) -> str:
        """What rack.js says, too."""
        said = (REFUSALS[1] if self("refused", at) else WORDS).format(**self.found(at))
        shares = [f"{name} {', '.join(map(str, of))}" for name, of in self.partners(at, rank).items() if of]
        along = "; ".join(shares) or "no axis"
        return f"{TITLE} {self.chosen(at)}. {said} Rank {rank} has partners along {along}."


def rack(*names: str, **start: object) -> Played:
    """Which bytes of a step cross the cables, for each order of the axes and their sizes, and a rank's
    partners.

    Args:
        names: what the reader chooses, names in `CHOICES`; by default all of them.
        start: the option of each name at the start, also of those that stay so.

    Raises:
        ValueError: a name or an option is not known.
    """
    grid = Racks(chosen_from(CHOICES, names, start))
    data = grid.data | {"title": TITLE, "words": WORDS, "refusals": REFUSALS, "letters": grid.letters}
    data |= {"names": list(AXES)}
    data |= {"colours": {name: (colour, ink(colour)) for name, (colour, _) in AXES.items()}}
    data |= {"hosts": HOSTS}
    return Played("numbers choices rack", draw(grid), grid.sentence(grid.start, 0), data)
