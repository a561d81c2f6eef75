"""A few lines of SVG: text, boxes, hatches.  What a script moves has a name, `data-name`."""

from __future__ import annotations

import html
from collections.abc import Mapping

INK, PAPER = "currentColor", "var(--paper, #fff)"  # the page's own colours; as an image black on white
WIDE = 560  # of every figure: its words can be read at 420 pixels, too
PATTERNS = {  # matplotlib's hatches, in a square of 8
    "//": "M0 8L8 0",
    "\\\\": "M0 0L8 8",
    "xx": "M0 8L8 0M0 0L8 8",
    "..": "M1 2h2M5 6h2",
    "....": "M1 2h1M5 6h1",
    "--": "M0 4h8",
    "++": "M0 4h8M4 0v8",
}


def element(tag: str, inside: str = "", name: str = "", **attributes: object) -> str:
    """An element; `text_anchor` becomes text-anchor."""
    given = ({"data-name": name} if name else {}) | attributes
    told = "".join(f' {key.replace("_", "-")}="{html.escape(shown(value))}"' for key, value in given.items())
    return f"<{tag}{told}>{inside}</{tag}>" if inside else f"<{tag}{told}/>"


def shown(value: object) -> str:
    """A number with at most two digits behind the point."""
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)


def text(x: float, y: float, words: object, name: str = "", **attributes: object) -> str:
    """Words from (x, y) on; their `text_anchor` says otherwise."""
    return element("text", html.escape(str(words)), name, x=x, y=y, **attributes)


def box(x: float, y: float, width: float, height: float, name: str = "", **attributes: object) -> str:
    """A rectangle; as thin as nothing where its width is negative."""
    return element("rect", "", name, x=x, y=y, width=max(0, width), height=height, **attributes)


def path(way: str, name: str = "", **attributes: object) -> str:
    """A line in the page's ink."""
    return element("path", "", name, d=way, **({"stroke": INK, "fill": "none"} | attributes))


def fills(looks: Mapping[str, tuple[str, str]]) -> tuple[dict[str, str], str]:
    """({name: what fills it}, the patterns that must be in the picture), of {name: (colour, hatch)}."""
    filled, patterns = {}, []
    for place, (name, (colour, hatch)) in enumerate(looks.items()):
        filled[name] = f"url(#play-{place})" if hatch else colour
        if hatch:
            ground = box(0, 0, 8, 8, fill=colour)
            lines = path(PATTERNS[hatch], stroke="#fff", stroke_width=1.4)
            options = {"width": 8, "height": 8, "patternUnits": "userSpaceOnUse"}
            patterns.append(element("pattern", ground + lines, id=f"play-{place}", **options))
    return filled, "".join(patterns)


def svg(height: float, inside: str, definitions: str = "") -> str:
    """A picture of this height, `WIDE` wide."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height:g}" width="{WIDE}"'
        f' font-family="system-ui, sans-serif" font-size="14" fill="{INK}"><defs>{definitions}</defs>'
        f'<rect width="{WIDE}" height="{height:g}" fill="{PAPER}"/>{inside}</svg>'
    )
