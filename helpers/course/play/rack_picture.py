"""The picture of `racks`: hosts on both sides of a switch, their GPUs by rank, and a cable for each axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from helpers.course.job.reference import EACH, HOSTS
from helpers.course.play.vectors import INK, WIDE, box, path, svg, text
from helpers.course.plots.drawing import ink
from helpers.course.plots.style import LINES

if TYPE_CHECKING:
    from helpers.course.play.racks import Racks

AXES = {  # colour and words
    "pipe": (LINES[1], "pipe: activations"),
    "data": (LINES[2], "data: gradients"),
    "model": (LINES[0], "model: blocks' sums"),
    "expert": (LINES[3], "experts: tokens"),
}
LEFT, TOP, HIGH, BOX, COLUMN = 8, 40, 84, 172, WIDE - 180
SWITCH = (WIDE // 2 - 9, WIDE // 2 + 9)


def thick(tenths: int) -> float:
    """A cable's width, which grows with the logarithm of its gigabytes."""
    return 2.2 * math.log10(1 + tenths)


def draw(grid: Racks) -> str:
    """The figure at the start, with the partners of rank 0."""
    at, partners = grid.start, grid.partners(grid.start, 0)
    middle = {"text_anchor": "middle", "font_size": 13}
    out = [text(LEFT, 20, "What crosses the cables in a step", font_weight="bold")]
    out.append(text(WIDE - 8, 22, f"{grid('total', at) / 10:.1f} GB", "total", **bold(18)))
    high = HIGH * HOSTS // 2 - 12
    out.append(box(SWITCH[0], TOP, 18, high, rx=4, fill=INK, fill_opacity=0.25))
    out.append(text(WIDE // 2, TOP + high + 16, "switch", **middle))
    for host in range(HOSTS):
        out += drawn(host, grid, partners)
    for place, (name, (colour, words)) in enumerate(AXES.items()):
        x, y = LEFT + place % 2 * 284, TOP + high + 44 + place // 2 * 22
        out.append(box(x, y - 11, 20, 12, fill=colour) + text(x + 27, y, words))
        out.append(text(x + 260, y, f"{grid(name, at) / 10:.1f} GB", f"value {name}", **bold(14)))
    return svg(TOP + high + 76, "".join(out))


def bold(size: int) -> dict:
    """Of a number."""
    return {"text_anchor": "end", "font_weight": "bold", "font_size": size}


def drawn(host: int, grid: Racks, partners: dict[str, list[int]]) -> list[str]:
    """A host, its cables and its GPUs."""
    is_right, y = host % 2, TOP + host // 2 * HIGH
    x = COLUMN if is_right else LEFT
    out = [box(x, y, BOX, HIGH - 12, rx=6, fill="none", stroke=INK, stroke_opacity=0.5)]
    out.append(text(x + 6, y + 15, f"host {host}", font_size=12))
    for place, name in enumerate(AXES):
        line = y + 14 + 15 * place
        way = f"M{SWITCH[1]} {line}H{x}" if is_right else f"M{x + BOX} {line}H{SWITCH[0]}"
        look = {"stroke": AXES[name][0], "stroke_width": thick(grid(name, grid.start))}
        out.append(path(way, f"cable {name} {host}", **look))
    for place in range(EACH):
        rank = host * EACH + place
        left, top = x + 6 + place % 4 * 41, y + 20 + place // 4 * 25
        colour = colour_of(rank, partners)
        look = {"fill": colour or "transparent", "stroke": INK, "stroke_width": 1 if rank else 3}
        words = {"fill": ink(colour) if colour else INK, "text_anchor": "middle", "font_size": 13}
        cell = box(left, top, 37, 22, **look) + text(left + 18.5, top + 16, rank, **words)
        out.append(f'<g data-name="gpu {rank}" style="cursor:pointer">{cell}</g>')
    return out


def colour_of(rank: int, partners: dict[str, list[int]]) -> str | None:
    """Of the axis along which a rank is a partner, experts before data; None where it is none."""
    shared = [name for name, of in partners.items() if rank in of]
    return AXES[shared[-1]][0] if shared else None
