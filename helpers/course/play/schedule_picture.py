"""The picture of `pipelined`: a row of boxes for each stage, and below what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.course.play.grids import Grid
from helpers.course.play.vectors import INK, PAPER, WIDE, box, path, svg, text
from helpers.course.plots.drawing import ink
from helpers.course.plots.schematics_pipeline import ACTIONS

LEFT, RIGHT, TOP, ROW = 74, WIDE - 14, 56, 38
HELD_TOP, HELD_ROW, MOST = TOP + 4 * ROW + 62, 24, 8  # micro-batches that a stage may hold

MIDDLE = {"text_anchor": "middle", "font_size": 12}


def draw(timelines: list[list[tuple]], grid: Grid, axes: Sequence[int]) -> str:
    """The figure at the start, with the whole schedule behind its cursor."""
    at, limit = grid.start, axes[grid("axis", grid.start)]
    scale = (RIGHT - LEFT) / limit
    big = {"text_anchor": "end", "font_weight": "bold", "font_size": 18}
    out = [text(14, 24, "What each stage does", font_weight="bold")]
    out.append(text(RIGHT, 26, f"{grid('idle', at) / 10:.1f} % idle", "idle", **big))
    for stage in range(len(timelines)):
        y = TOP + stage * ROW
        out.append(text(14, y + 21, f"stage {stage}"))
        out.append(box(LEFT, y, RIGHT - LEFT, ROW - 6, fill=INK, fill_opacity=0.08))
    boxes = "".join(action(event, scale) for row in timelines for event in row)
    look = f'stroke="{PAPER}" font-size="11" text-anchor="middle"'
    out.append(f'<g data-name="boxes" {look}>{boxes}</g>')
    end = TOP + len(timelines) * ROW
    for place in range(5):
        x = LEFT + (RIGHT - LEFT) * place / 4
        word = text(
            x, end + 15, f"{limit * place / 8:g}", f"tick {place}", text_anchor="middle", font_size=12
        )
        out += [path(f"M{x:g} {end - 4}v5"), word]
    out.append(text((LEFT + RIGHT) / 2, end + 31, "forward passes", **MIDDLE))
    x = LEFT + grid("total", at) * scale
    out.append(path(f"M0 {TOP - 8}V{end}", "cursor", stroke_width=2, transform=f"translate({x:g} 0)"))
    return svg(HELD_TOP + 4 * HELD_ROW + 38, "".join(out) + held(timelines, grid) + legend())


def action(event: tuple, scale: float) -> str:
    """A box with the number of its micro-batch; schedule.js moves and colours it."""
    kind, stage, micro, start, end = event
    colour, y = ACTIONS[kind][0], TOP + stage * ROW
    x, width = LEFT + start * scale, (end - start) * scale
    word = text(round(x + width / 2, 1), y + 20, micro, fill=ink(colour), stroke="none")
    return f"<g>{box(round(x, 1), y, round(width, 1), ROW - 6, fill=colour)}{word}</g>"


def held(timelines: list[list[tuple]], grid: Grid) -> str:
    """For each stage as many squares as it holds micro-batches at most; those at the cursor are filled."""
    out = [text(14, HELD_TOP - 10, "Micro-batches in flight", font_weight="bold")]
    for stage in range(len(timelines)):
        y, most = HELD_TOP + stage * HELD_ROW, grid(f"most {stage}", grid.start)
        out.append(text(14, y + 15, f"stage {stage}"))
        for place in range(MOST):
            look = {"fill": ACTIONS["F"][0], "fill_opacity": 0, "stroke": INK}
            name = f"held {stage} {place}"
            out.append(box(LEFT + 24 * place, y, 18, 18, name, opacity=int(place < most), **look))
        out.append(text(LEFT + 24 * MOST + 12, y + 15, f"0, at most {most}", f"most {stage}"))
    return "".join(out)


def legend() -> str:
    """Colours."""
    out, x = [], 14
    for name, (colour, words) in ACTIONS.items():
        y = HELD_TOP + 4 * HELD_ROW + 24
        out.append(
            f'<g data-name="kind {name}">{box(x, y - 11, 13, 13, fill=colour)}{text(x + 19, y, words)}</g>'
        )
        x += 34 + 8 * len(words)
    return "".join(out)
