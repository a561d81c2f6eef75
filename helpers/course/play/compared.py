"""Two bars on one axis, to play with: what the reader chooses, part by part, beside a base."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from helpers.course.play.grids import Choice, Grid, chosen_from
from helpers.course.play.played import Played
from helpers.course.play.vectors import INK, PAPER, WIDE, box, path, svg, text

LEFT, RIGHT, TOPS = 20, WIDE - 20, {"base": 46, "yours": 136}
Numbers = Mapping[str, float]
Goals = Mapping[str, Callable[[dict, float], bool]]


@dataclass(frozen=True)
class Bars:
    """What such a figure compares.

    Attributes:
        found: of an option of each choice by name, {part and what else the words tell: a number of `unit`}.
        base: the same of the upper bar, its parts alone.
        called: the upper bar's name.
        unit: "s", say; all numbers are told in hundredths of it.
        parts: {part: colour}, from left to right.
        below: (number, colour) of a thin bar below the lower one, that ends where its first part ends.
        title, words: what is told; the words name numbers, "total", "base" and "times".
        goals: {words: whether options and the quotient of both bars reach it}.
        labels: {number: the legend's words for it}, where its name is too short.
    """

    found: Callable[..., Numbers]
    base: Callable[..., Numbers]
    called: str
    unit: str
    parts: Mapping[str, str]
    title: str
    words: str
    goals: Goals
    below: tuple[str, str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def legend(self) -> dict[str, str]:
        """{what has a place in it: colour}."""
        return dict(self.parts) | dict([self.below] if self.below else [])


class Compared(Grid):
    """Hundredths of all numbers, and the goals reached, a bit for each."""

    def __init__(self, bars: Bars, choices: Mapping[str, Choice]) -> None:
        self.bars = bars
        super().__init__(choices, self.cell)

    def cell(self, **ways: object) -> dict[str, int]:
        found, base = self.bars.found(**ways), self.bars.base(**ways)
        total, alone = (sum(one[part] for part in self.bars.parts) for one in (found, base))
        numbers = {**found, "total": total, "base": alone, "times": alone / total}
        numbers |= {f"base {part}": base[part] for part in self.bars.parts}
        goals = sum(2**at for at, goal in enumerate(self.bars.goals.values()) if goal(ways, alone / total))
        return {name: round(100 * number) for name, number in numbers.items()} | {"goals": goals}

    def shown(self, name: str, at: Mapping[str, int]) -> str:
        return f"{self(name, at) / 100:.2f}"

    def sentence(self, at: Mapping[str, int]) -> str:
        """What compared.js says, too."""
        words = self.bars.words.format_map({name: self.shown(name, at) for name in self.told})
        return f"{self.bars.title} {self.chosen(at)}. {words}"

    @property
    def told(self) -> list[str]:
        """Numbers that words and legend name."""
        return [name for name in self.columns if name != "goals" and not name.startswith("base ")]


def played(bars: Bars, choices: Mapping[str, Choice], names: tuple[str, ...], start: dict) -> Played:
    """The figure.

    Args:
        names: what the reader chooses, names in `choices`; by default all of them.
        start: the option of each name at the start, also of those that stay so.

    Raises:
        ValueError: a name or an option is not known.
    """
    grid = Compared(bars, chosen_from(choices, names, start))
    data = grid.data | {"title": bars.title, "words": bars.words, "goals": list(bars.goals)}
    data |= {"unit": bars.unit, "parts": list(bars.parts), "legend": list(bars.legend), "told": grid.told}
    data |= {"below": bars.below and bars.below[0], "left": LEFT, "right": RIGHT}
    return Played("numbers choices compared", draw(grid), grid.sentence(grid.start), data)


def draw(grid: Compared) -> str:
    bars, at, out = grid.bars, grid.start, []
    scale = (RIGHT - LEFT) / max(grid("base", at), grid("total", at))
    for row, words, total, prefix in (
        ("base", bars.called, "base", "base "),
        ("yours", "yours", "total", ""),
    ):
        top, end = TOPS[row], LEFT
        out.append(text(LEFT, top - 12, words, font_weight="bold"))
        look = {"text_anchor": "end", "font_weight": "bold", "font_size": 18}
        out.append(text(RIGHT, top - 10, f"{grid.shown(total, at)} {bars.unit}", f"total {row}", **look))
        for part, colour in bars.parts.items():
            size = grid(prefix + part, at) * scale
            look = {"fill": colour, "stroke": PAPER, "class": "slides"}
            out.append(box(end, top, size, 36, f"{row} {part}", **look))
            end += size
    if bars.below:
        name, colour = bars.below
        end = LEFT + grid(next(iter(bars.parts)), at) * scale
        begin = max(LEFT, end - grid(name, at) * scale)
        look = {"fill": colour, "class": "slides"}
        out.append(box(begin, TOPS["yours"] + 40, end - begin, 10, "below", **look))
    out += [path(f"M{LEFT} {top - 3}v42") for top in TOPS.values()]
    for place, (name, colour) in enumerate(bars.legend.items()):
        x, y = LEFT + 270 * (place % 2), 212 + 24 * (place // 2)
        out.append(box(x, y - 12, 14, 14, fill=colour, stroke=INK, stroke_opacity=0.3))
        out.append(text(x + 20, y, bars.labels.get(name, name)))
        value = f"{grid.shown(name, at)} {bars.unit}"
        out.append(text(x + 240, y, value, f"value {name}", text_anchor="end"))
    return svg(246, "".join(out))
