"""The picture of `budgets`: a bar of memory with a line at the card's size, a bar of seconds, a legend with
numbers.  `budget.js` moves what has a name here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.course.job.reference import MEMORY
from helpers.course.play.llama_step import PARTS
from helpers.course.play.vectors import INK, PAPER, WIDE, box, fills, path, svg, text
from helpers.course.plots.budget import KEPT, LOOKS, OUTSIDE
from helpers.course.plots.style import PARTS as COLOURS

if TYPE_CHECKING:
    from helpers.course.play.budgets import Budgets

NEVER = (KEPT, "gradients of activations", "Adam's temporaries", "not told apart", "other")
CATEGORIES = [name for name in LOOKS if name not in NEVER]  # with the highest moments of the job
assert CATEGORIES[-1] == OUTSIDE
LOOK_OF = {name: LOOKS[name] for name in CATEGORIES} | dict(zip(PARTS, zip(COLOURS[1:], ("", "..", ""))))
LEFT, RIGHT = 20, WIDE - 20
WHOLE = 2 * MEMORY / 1e9  # GB at the right edge: the card in the middle
PER_GB = (RIGHT - LEFT) / WHOLE
MEMORY_TOP, TIME_TOP, LEGEND_TOP, ROW = 64, 172, 252, 22
BIG = {"text_anchor": "end", "font_weight": "bold", "font_size": 18}


def stacked(sizes: Mapping[str, float], top: float, height: float, filled: Mapping[str, str]) -> list[str]:
    """Boxes one after the other, cut off at the right edge; sizes in pixels."""
    out, end = [], LEFT
    for name, size in sizes.items():
        width = min(end + size, RIGHT) - min(end, RIGHT)
        look = {"fill": filled[name], "stroke": PAPER, "class": "slides"}
        out.append(box(min(end, RIGHT), top, width, height, name, **look))
        end += size
    return out


def ticks(top: float, words: Sequence[object], apart: float, name: str = "") -> list[str]:
    """Marks with words, from the left edge on, so many pixels apart."""
    out = []
    for place, word in enumerate(words):
        x = LEFT + place * apart
        out.append(path(f"M{x:g} {top}v5"))
        named = f"{name} {place}" if name else ""
        out.append(text(x, top + 19, word, named, text_anchor="middle", font_size=12))
    return out


def draw(grid: Budgets, axes: Sequence[int]) -> str:
    """The figure at the start."""
    at = grid.start | {"moment": 0}
    at["moment"] = grid("fullest at", at)
    filled, patterns = fills(LOOK_OF)
    red = box(0, 0, 8, 8, fill="none") + path("M0 8L8 0", stroke="#C00", stroke_width=1.6)
    patterns += f'<pattern id="play-red" width="8" height="8" patternUnits="userSpaceOnUse">{red}</pattern>'

    def number(name):
        return grid(name, at)

    inside = "".join([*memory(number, filled), *time(number, filled, axes), *legend(number, filled)])
    return svg(LEGEND_TOP + 8 * ROW - 6, inside, patterns)


def memory(number: Callable[[str], int], filled: Mapping[str, str]) -> list[str]:
    """The bar of gigabytes: what is beyond the card is red."""
    total, line = number("total") / 10, LEFT + MEMORY / 1e9 * PER_GB
    end = min(LEFT + total * PER_GB, RIGHT)
    arrow = " ➔" if total > WHOLE else ""
    out = [text(LEFT, 18, "Memory of the fullest GPU, GB", font_weight="bold")]
    out.append(text(RIGHT, 22, f"{total:.1f} GB{arrow}", "total", **BIG))
    out += stacked({name: number(name) / 10 * PER_GB for name in CATEGORIES}, MEMORY_TOP, 36, filled)
    look = {"fill": "url(#play-red)", "stroke": "#C00", "stroke_width": 2.5, "opacity": int(end > line)}
    out.append(box(line, MEMORY_TOP - 4, end - line, 44, "over", **look))
    out.append(path(f"M{line:g} {MEMORY_TOP - 14}v58", stroke_width=2.5))
    out.append(text(line - 5, MEMORY_TOP - 8, f"the card: {MEMORY / 1e9:g}", text_anchor="end", font_size=13))
    out.append(path(f"M0 {MEMORY_TOP - 8}v50", "before", stroke_dasharray="4 3", opacity=0))
    return out + ticks(MEMORY_TOP + 38, range(0, int(WHOLE), 20), 20 * PER_GB)


def time(number: Callable[[str], int], filled: Mapping[str, str], axes: Sequence[int]) -> list[str]:
    """The bar of seconds at the fastest, and how far the slowest lies."""
    limit = axes[number("axis")]
    scale = (RIGHT - LEFT) / limit / 10
    end, slowest = LEFT + sum(map(number, PARTS)) * scale, LEFT + number("slowest") * scale
    told = f"{number('fastest') / 10:.1f} to {number('slowest') / 10:.1f} s"
    out = [text(LEFT, TIME_TOP - 12, "Seconds of a step", font_weight="bold")]
    out.append(text(RIGHT, TIME_TOP - 10, told, "seconds", **BIG))
    out += stacked({name: number(name) * scale for name in PARTS}, TIME_TOP, 24, filled)
    look = {"fill": INK, "fill_opacity": 0.3, "class": "slides"}
    out.append(box(end, TIME_TOP + 9, slowest - end, 6, "range", **look))
    quarters = [f"{limit * place / 4:g}" for place in range(5)]
    return out + ticks(TIME_TOP + 26, quarters, (RIGHT - LEFT) / 4, "tick")


def legend(number: Callable[[str], int], filled: Mapping[str, str]) -> list[str]:
    """Every part with its number, those of no size pale."""
    out = []
    for index, name in enumerate(filled):
        x, y = LEFT + index % 2 * 270, LEGEND_TOP + index // 2 * ROW
        unit = "s" if name in PARTS else "GB"
        inside = box(x, y - 11, 13, 13, fill=filled[name]) + text(x + 19, y, name)
        value = f"{number(name) / 10:.1f} {unit}"
        inside += text(x + 250, y, value, f"value {name}", text_anchor="end", font_weight="bold")
        out.append(f'<g data-name="entry {name}" opacity="{1 if number(name) else 0.35}">{inside}</g>')
    return out
