"""A ring all-reduce, exchange by exchange: which part each rank sends, and whose numbers each part holds."""

from __future__ import annotations

from dataclasses import dataclass

from helpers import theory
from helpers.course.play.played import Played
from helpers.course.play.vectors import INK, WIDE, box, element, path, svg, text
from helpers.course.plots.drawing import ink
from helpers.course.plots.style import owner_colour
from helpers.tools.whole import positive

RANKS = 4
LAST = 2 * (RANKS - 1)
START = 2  # the turn that is shown first: sums have begun to grow
WORDS = "Ring all-reduce of {size} on {ranks} ranks. Exchange {turn} of {last}: {says} Each has sent {sent}."
PLACES = ((16, 30), (326, 30), (326, 258), (16, 258))  # of the ranks, clockwise
ARROWS = ("M242 110h70", "M434 204v20", "M318 338h-70", "M126 228v-20")
PALE = 0  # opacity of numbers that are not in a sum; their place stays


@dataclass(frozen=True)
class Turn:
    """What stands after a turn: `held[rank][part]` are the ranks whose numbers are summed there, as digits;
    `sends[rank]` is the part that it has sent to the next rank, none at the start."""

    held: tuple[tuple[str, ...], ...]
    sends: tuple[int, ...] = ()


def turns() -> list[Turn]:
    """The all-reduce: rank r first sends part r - 1; what it has received it sends on, summed in the first
    half, which leaves it with part r, and as it is in the second (Patarasuk and Yuan, 2009)."""
    found = [Turn(tuple((str(rank),) * RANKS for rank in range(RANKS)))]
    for turn in range(LAST):
        summing, before = turn < RANKS - 1, found[-1].held
        sends = tuple((rank - turn - 1) % RANKS for rank in range(RANKS))
        held = [list(parts) for parts in before]
        for rank, part in enumerate(sends):
            there, came = held[(rank + 1) % RANKS], before[rank][part]
            there[part] = "".join(sorted(there[part] + came)) if summing else came
        found.append(Turn(tuple(map(tuple, held)), sends))
    return found


def says(turn: int, at: Turn) -> str:
    """What happens in a turn."""
    if not turn:
        return f"each rank has its own numbers in {RANKS} parts."
    first = turn < RANKS
    kind, verb = ("reduce-scatter", "adds it to its own") if first else ("all-gather", "keeps it")
    moved = ", ".join(f"{rank} → {(rank + 1) % RANKS} part {part}" for rank, part in enumerate(at.sends))
    end = ""
    if turn == RANKS - 1:
        end = " Now each rank has one finished part."
    if turn == LAST:
        end = " Every rank has every sum."
    return f"{kind}, {moved}; who receives a part {verb}.{end}"


def sentences(megabytes: float) -> list[str]:
    """Of each turn; `ring.js` shows them."""
    each, whole = megabytes / RANKS, theory.wire_bytes("all_reduce", megabytes, RANKS)
    size = {"size": f"{megabytes:g} MB", "ranks": RANKS, "last": LAST}
    return [
        WORDS.format(**size, turn=turn, says=says(turn, at), sent=f"{turn * each:g} of {whole:g} MB")
        for turn, at in enumerate(turns())
    ]


def ring(megabytes: float = 400) -> Played:
    """The contents of a ring all-reduce on four ranks, step by step; a ValueError where there is nothing to
    send.

    Args:
        megabytes: of the tensor that each rank has.
    """
    positive(megabytes=megabytes)
    whole = theory.wire_bytes("all_reduce", megabytes, RANKS)
    found, said = turns(), sentences(megabytes)
    sent = [f"{turn * megabytes / RANKS:g} of {whole:g} MB" for turn in range(LAST + 1)]
    data = {
        **{"held": [turn.held for turn in found], "sends": [turn.sends for turn in found], "says": said},
        **{"sent": sent, "pale": PALE, "last": LAST, "turn": START, "each": 1800, "of": "exchange"},
    }
    return Played("stepper ring", draw(found[START], sent[START]), said[START], data)


def draw(at: Turn, sent: str) -> str:
    """The four ranks in a circle, each with four parts that have a place for every rank's numbers."""
    arrow = path("M0 0L8 4L0 8z", stroke="none", fill=INK)
    options = {"viewBox": "0 0 8 8", "refX": 4, "refY": 4, "markerWidth": 4, "markerHeight": 4}
    head = element("marker", arrow, id="play-head", orient="auto", **options)
    look = {"stroke_width": 3, "stroke_opacity": 0.7, "marker_end": "url(#play-head)"}
    out = [path(way, **look) for way in ARROWS]
    for rank, (x, y) in enumerate(PLACES):
        look = {"rx": 8, "fill": "none", "stroke": INK, "stroke_opacity": 0.45}
        out.append(box(x, y - 24, 218, 190, **look))
        out.append(text(x + 12, y - 6, f"rank {rank}", font_weight="bold"))
        out += [row(rank, part, summed, x, y) for part, summed in enumerate(at.held[rank])]
    middle = {"text_anchor": "middle", "font_weight": "bold"}
    out.append(text(WIDE // 2, 212, sent, "sent", **middle))
    out.append(text(WIDE // 2, 230, "sent by each rank", text_anchor="middle", font_size=13))
    return svg(436, "".join(out), head)


def row(rank: int, part: int, summed: str, x: float, y: float) -> str:
    """A part of a rank: a place for every rank's numbers."""
    top, out = y + 6 + 38 * part, [text(x + 8, y + 27 + 38 * part, f"part {part}", font_size=13)]
    for whose in range(RANKS):
        colour, left = owner_colour(whose), x + 54 + 40 * whose
        out.append(box(left, top, 36, 31, fill="none", stroke=INK, stroke_opacity=0.25))
        cell = box(left, top, 36, 31, fill=colour, stroke=INK)
        look = {"text_anchor": "middle", "fill": ink(colour)}
        cell += text(left + 18, top + 21, whose, **look)
        shown = 1 if str(whose) in summed else PALE
        out.append(f'<g data-name="{whose}" opacity="{shown}">{cell}</g>')
    return f'<g data-name="part {rank} {part}">{"".join(out)}</g>'
