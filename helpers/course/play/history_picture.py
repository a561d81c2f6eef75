"""The picture of `histories`: bytes by category on top of each other, a cursor, and what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from helpers.course.play.vectors import PAPER, WIDE, box, fills, path, svg, text
from helpers.course.plots.budget import LOOKS
from helpers.course.plots.style import LOOK

if TYPE_CHECKING:
    from helpers.course.play.histories import Held

ROWS = 6  # names that are listed
LASTING = ("parameters", "master weights", "optimizer states")  # through a step: at the bottom, level
AXIS, LEFT, RIGHT, TOP, BOTTOM = 48, 20, WIDE - 20, 62, 242
LINE = 22


def draw(held: Held) -> tuple[str, list[int]]:
    """(the figure with its cursor at the peak, where each moment lies)."""
    looks = {name: LOOK.get(name) or LOOKS.get(name) or ("#BBBBBB", "") for name in held.categories}
    filled, patterns = fills(looks)
    width = (RIGHT - AXIS) / len(held.phases)
    places = [round(AXIS + place * width) for place in held.places]
    most = max(held("total", turn) for turn in range(len(places)))
    out = [text(LEFT, 18, held.title, font_weight="bold")]
    sums = [0] * len(places)
    areas = []
    for name in sorted(held.categories, key=lambda name: name not in LASTING):
        sums = [below + held(name, turn) for turn, below in enumerate(sums)]
        areas.append(area(places, [BOTTOM - (BOTTOM - TOP) * each / most for each in sums], filled[name]))
    out += reversed(areas)  # each reaches down to the axis, and what lies lower is drawn over it
    out.append(path(f"M{AXIS} {BOTTOM}H{RIGHT}"))
    out += ticks(held, most)
    for place, name in enumerate(held.phases):
        x = AXIS + place * width
        out.append(path(f"M{x:.0f} {TOP - 4}V{BOTTOM + 6}", stroke_opacity=0.5))
        lowered = BOTTOM + 18 + 15 * (place % 2 if len(held.phases) > 3 else 0)
        out.append(text(round(x + width / 2), lowered, name, text_anchor="middle", font_size=12))
    x, total = places[held.peak], held.told(held("total", held.peak))
    look = {"text_anchor": "end", "font_weight": "bold", "font_size": 18}
    out.append(text(RIGHT, 44, f"{total} {held.unit}", "total", **look))
    cursor = path(f"M0 {TOP - 10}V{BOTTOM + 4}", stroke_width=2)
    cursor += path(f"M-6 {TOP - 16}h12l-6 8z", fill="currentColor")
    out.append(f'<g data-name="cursor" transform="translate({x} 0)">{cursor}</g>')
    listed, height = legend(held, filled)
    return svg(height, "".join(out) + listed, patterns), places


def area(places: Sequence[int], heights: Sequence[float], filled: str) -> str:
    """Stairs from moment to moment, down to the axis."""
    way, before = f"M{AXIS} {BOTTOM}", BOTTOM
    for x, y in zip(places, map(round, heights)):
        if y != before:
            way += f"H{x}V{y}"
            before = y
    return path(f"{way}H{RIGHT}V{BOTTOM}z", fill=filled, stroke=PAPER, stroke_width=0.5)


def ticks(held: Held, most: int) -> list[str]:
    """Round amounts at the axis, at most six, up to what is held at most."""
    out, top = [], most / 10**held.digits
    step = next(
        size * 10.0**power for power in range(-9, 13) for size in (1, 2, 5) if top <= 5 * size * 10.0**power
    )
    for number in range(int(top / step) + 1):
        y = round(BOTTOM - (BOTTOM - TOP) * number * step / top)
        out.append(path(f"M{AXIS - 4} {y}h4"))
        out.append(text(AXIS - 7, y + 4, f"{number * step:.3g}", text_anchor="end", font_size=11))
    return [*out, text(LEFT, TOP - 12, held.unit, font_size=11)]


def legend(held: Held, filled: dict[str, str]) -> tuple[str, int]:
    """(what is there at the cursor: by category at the left, by name at the right, or without names by
    category in two columns; where it ends)."""
    top, out = BOTTOM + 62, []
    right = {"text_anchor": "end", "font_weight": "bold"}
    rows = len(held.categories) if held.names else -(-len(held.categories) // 2)
    for place, name in enumerate(held.categories):
        x, y = LEFT + place // rows * 274, top + place % rows * LINE
        size = held(name, held.peak)
        inside = box(x, y - 11, 13, 13, fill=filled[name]) + text(x + 19, y, name)
        inside += text(x + 246, y, held.told(size), f"value {name}", **right)
        out.append(f'<g data-name="entry {name}" opacity="{1 if size else 0.35}">{inside}</g>')
    listed = held.largest(held.peak)
    for row in range(ROWS if held.names else 0):
        name, size = listed[row] if row < len(listed) else ("", None)
        y = top + row * LINE
        out.append(text(LEFT + 274, y, name, f"name {row}", font_size=13))
        out.append(text(RIGHT, y, "" if size is None else held.told(size), f"size {row}", **right))
    rows = max(rows, ROWS if held.names else 0)
    return "".join(out), top + rows * LINE
