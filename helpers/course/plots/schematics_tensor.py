"""Tensor parallelism: two products that two ranks share, a block, which heads a rank takes, what a rank has
where, and what a shared block's seconds consist of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.course.plots.drawing import (
    arrow,
    bare,
    blank,
    box,
    ink,
    legend_below,
    legend_beside,
    legend_under,
    name_rows,
    new_figure,
    rank_swatches,
    swatch,
    write,
)
from helpers.course.plots.replicas import MESSAGE
from helpers.course.plots.style import WIDE, Plot, in_style, owner_colour

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes

REPEATED = {"colour": "#DDDDDD", "hatch": "///", "edgecolor": "#888888", "linewidth": 0.8}
PLAIN = {"edgecolor": "white"}
SUMMAND = {"edgecolor": owner_colour(0), "hatch": "..", "linewidth": 1.0}
LANES = {  # what a rank has of (s, h) at a place: the shape in words, how much of its width and of its height
    "all": ("(s, h)", 1.0, 1.0),
    "channels": ("(s, h/t)", 0.5, 1.0),
    "summand": ("(s, h)\na summand", 1.0, 1.0),
    "tokens": ("(s/t, h)", 1.0, 0.5),
}
BUSY = {"color": "black", "marker": "o", "markersize": 6, "linestyle": ""}  # of a recorded block: the GPU
CLOCK = BUSY | {"marker": "D", "markerfacecolor": "white"}  # a whole pass
UNIT = 0.62  # of the drawing, for a matrix of `width` rows or columns
LOW, GAP = (3.1, 0.0), 0.16  # where the two ranks' rows begin, rank 0 above; between places
HIGH = 2.5  # of a rank's row


class _Block:
    """Draws places from left to right, in the rows of both ranks."""

    def __init__(self, axes: Axes, width: int, message: str) -> None:
        self.axes, self.width, self.message, self.x = axes, width, message, 0.0

    def middle(self, rank: int) -> float:
        return LOW[rank] + HIGH / 2

    def repeated(self, name: str, wide: float, high: float) -> None:
        """What both ranks have and do."""
        look = dict(REPEATED)
        colour = look.pop("colour")
        for rank in range(2):
            y = self.middle(rank) - high / 2
            box(self.axes, self.x, y, wide, high, colour, **look)
            write(self.axes, self.x + wide / 2, y - 0.05, name, va="top", fontsize=7.5)
        self.x += wide + GAP

    def matrices(self, parts: Sequence[tuple[str, int, int]], by_rows: bool) -> None:
        """Matrices above one another, (name, rows, columns), of which each rank has half of the rows or of
        the columns."""
        scale, between = UNIT / self.width, 0.2
        wide = max(columns for *_, columns in parts) * scale
        total = sum(rows for _, rows, _ in parts) * scale + between * (len(parts) - 1)
        for rank in range(2):
            y = self.middle(rank) + total / 2
            for name, rows, columns in parts:
                high, across = rows * scale, columns * scale
                y -= high
                box(self.axes, self.x, y, across, high, "white", edgecolor="#777777", linewidth=0.8)
                own = (across, high / 2) if by_rows else (across / 2, high)
                left = self.x + (0 if by_rows else rank * across / 2)
                low = y + (high / 2 * (1 - rank) if by_rows else 0)
                box(self.axes, left, low, *own, owner_colour(rank))
                write(self.axes, self.x + across / 2, y - 0.02, name, va="top", fontsize=7.5)
                y -= between
        self.x += wide + GAP

    def heads(self, count: int) -> None:
        """Heads, half of them filled."""
        columns, side = 4, 0.11
        for rank in range(2):
            top = self.middle(rank) + count / columns * side / 2
            for head in range(count):
                own = head * 2 // count == rank
                x, y = self.x + head % columns * side, top - (head // columns + 1) * side
                colour = owner_colour(rank) if own else "white"
                box(self.axes, x, y, side, side, colour, edgecolor="#777777", linewidth=0.5)
            y = top - count / columns * side
            write(self.axes, self.x + columns * side / 2, y - 0.05, "heads", va="top", fontsize=7.5)
        self.x += columns * side + GAP

    def operator(self, name: str) -> None:
        """f or g, with its message: g's forward, f's backward."""
        forward = name == "g"
        look = {"color": MESSAGE, "linewidth": 1.8, "arrowstyle": "<|-|>", "mutation_scale": 10}
        ends = (self.x + 0.1, LOW[0] + 0.62), (self.x + 0.1, LOW[1] + HIGH - 0.35)
        arrow(self.axes, *ends, linestyle="-" if forward else (0, (2, 1.2)), **look)
        for rank in range(2):
            write(
                self.axes, self.x + 0.1, self.middle(rank), name, fontsize=12, style="italic", weight="bold"
            )
        y = (LOW[0] + LOW[1] + HIGH) / 2 + 0.13
        write(self.axes, self.x + 0.17, y, self.message, ha="left", fontsize=7.5, color=MESSAGE)
        self.x += 0.2 + GAP


@in_style
def both_cuts(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, title: str) -> Plot:
    """Two products on two ranks, in numbers: Y = X A, with A cut by columns, and Z = Y B, with B cut by rows.

    Args:
        x, a, b: matrices of few whole numbers; the columns of `a` and the rows of `b` are even in number.
    """
    figure, axes = new_figure(WIDE, 4.3)
    y, half = x @ a, a.shape[1] // 2
    parts = [y[:, own] @ b[own] for own in (slice(half), slice(half, None))]
    by_columns = [rank for rank in (0, 1) for _ in range(half)]
    rows = {
        "A by columns": [
            ("X", x, None),
            ("·", 0, 0),
            ("A", a, by_columns),
            ("=", 0, 0),
            ("Y", y, by_columns),
        ],
        "B by rows": [
            ("Y", y, by_columns),
            ("·", 0, 0),
            ("B", b, [[rank] for rank in by_columns]),
            ("=", 0, 0),
        ],
    }
    for rank, part in enumerate(parts):
        rows["B by rows"] += [(f"rank {rank}'s part", part, rank), ("+" if rank == 0 else "=", 0, 0)]
    rows["B by rows"].append(("Z", sum(parts), None))
    tops = (0.0, 4.6)
    ends = [_draw_product(axes, top, factors) for top, factors in zip(tops, rows.values())]
    blank(axes, title=title, xlim=(-3.1, max(ends)), ylim=(8.9, -0.4))
    for top, name in zip(tops, rows):
        write(axes, -0.5, top + 1.0, name, ha="right", fontsize=10)
    both = swatch("both ranks have it", REPEATED["colour"], hatch="///", edgecolor="#888888")
    legend_below(axes, 0.0, 3, [*rank_swatches(range(2)), both])
    said = "; ".join(f"{name} {one.tolist()}" for name, one in (("X", x), ("A", a), ("Y", y), ("B", b)))
    summed = f"Rank 0's part of Z {parts[0].tolist()}, rank 1's {parts[1].tolist()}, Z {sum(parts).tolist()}"
    halves = "Each rank has half of the columns of A and Y, and half of the rows of B"
    return Plot(figure, f"{title}. {said}. {halves}. {summed}.")


def _draw_product(axes: Axes, top: float, factors: Sequence[tuple]) -> float:
    """Matrices and signs in a row: (name, matrix, what fills it), where None is both ranks, a number a rank,
    and a list a rank for each column, or for each row if it holds lists.  Returns the end."""
    x = 0.0
    for name, matrix, owner in factors:
        if isinstance(matrix, int):
            write(axes, x + 0.15, top + 1.0, name, fontsize=14)
            x += 0.5
            continue
        count, wide = matrix.shape
        first = top + (2 - count) / 2
        for row, numbers in enumerate(matrix.tolist()):
            for column, number in enumerate(numbers):
                rank = owner if not isinstance(owner, list) else owner[row if len(owner) != wide else column]
                rank = rank[0] if isinstance(rank, list) else rank
                colour = REPEATED["colour"] if rank is None else owner_colour(rank)
                look = {"hatch": "///", "edgecolor": "#AAAAAA"} if rank is None else PLAIN
                box(axes, x + column, first + row, 1, 1, colour, **look)
                ink_on = "black" if rank is None else ink(colour)
                write(axes, x + column + 0.5, first + row + 0.5, f"{number}", fontsize=10, color=ink_on)
        words = f"{name}\n{count} × {wide}"
        write(axes, x + wide / 2, first + count + 0.12, words, va="top", fontsize=8.5)
        x += wide + 0.3
    return x


@in_style
def divided_block(shape: Mapping[str, int], tokens: int, megabytes: float, title: str) -> Plot:
    """A Llama block that two ranks share: matrices to scale with each rank's half filled, what both repeat,
    and where a message passes.

    Args:
        shape: keys of transformers' configuration.
        tokens: of the sequence.
        megabytes: of a message.
    """
    figure, axes = new_figure(WIDE, 5.8)
    axes.set_aspect("equal")  # matrices are to scale
    h, inner, heads = shape["hidden_size"], shape["intermediate_size"], shape["num_attention_heads"]
    kv = shape["num_key_value_heads"] * h // heads
    block = _Block(axes, h, f"{megabytes:.0f}\nMB")
    block.repeated("x", 0.2, 1.6)
    block.repeated("norm", 0.3, 1.0)
    block.operator("f")
    block.matrices([("q", h, h), ("k", kv, h), ("v", kv, h)], by_rows=True)
    block.heads(heads)
    block.matrices([("out", h, h)], by_rows=False)
    block.operator("g")
    block.repeated("+", 0.2, 1.6)
    block.repeated("norm", 0.3, 1.0)
    block.operator("f")
    block.matrices([("gate", inner, h)], by_rows=True)
    block.matrices([("up", inner, h)], by_rows=True)
    block.matrices([("down", h, inner)], by_rows=False)
    block.operator("g")
    block.repeated("+", 0.2, 1.6)
    for rank in range(2):
        write(axes, -0.12, block.middle(rank), f"rank {rank}", ha="right", fontsize=10)
    sizes = {
        0.1: f"{tokens:,}\ntokens\n× {h:,}",
        1.65: f"q {h:,} × {h:,}\nk, v {kv:,} × {h:,}",
        2.95: f"{h:,}\n× {h:,}",
        5.35: f"each {inner:,} × {h:,}",
        7.5: f"{h:,} × {inner:,}",
    }
    for x, words in sizes.items():
        write(axes, x, LOW[0] + HIGH + 0.15, words, va="bottom", fontsize=7.5)
    blank(axes, title=title, xlim=(-0.85, block.x + 0.1), ylim=(LOW[1] - 0.15, LOW[0] + HIGH + 0.75))
    colour = REPEATED["colour"]
    both = swatch("both ranks repeat it", colour, hatch="///", edgecolor="#888888")
    sent = [
        axes.plot([], [], color=MESSAGE, linestyle=style, label=words)[0]
        for words, style in (("sum of both, forward", "-"), ("sum of both, backward", (0, (2, 1.2))))
    ]
    legend_below(axes, 0.0, 3, [*rank_swatches(range(2)), both, *sent])
    said = (
        f"Each of two ranks has half of the rows of q, k and v ({h:,}, {kv:,} and {kv:,} rows of {h:,}), of "
        f"gate and up ({inner:,} rows of {h:,}), half of the columns of out and down, and {heads // 2} of "
        f"{heads} heads; both repeat the norms and the additions. {megabytes:.0f} MB are summed over the "
        "ranks at each g forward and at each f backward"
    )
    return Plot(figure, f"{title}. {said}.")


@in_style
def stacked_heads(cuts: Mapping[str, Sequence[int]], names: Mapping[str, int], title: str) -> Plot:
    """Which heads of stacked q, k and v each rank takes: a strip for each way to cut the stack.

    Args:
        cuts: {way to cut: [rank that takes each head, in order]}.
        names: {stacked matrix: its heads}, in order.
    """
    figure, axes = new_figure(WIDE, 0.9 + 0.65 * len(cuts))
    heads = [(name, number) for name, count in names.items() for number in range(count)]
    said = []
    for strip, (way, ranks) in enumerate(cuts.items()):
        taken = {}
        for place, (rank, (name, number)) in enumerate(zip(ranks, heads, strict=True)):
            box(axes, place, strip + 0.15, 1, 0.7, owner_colour(rank), str(number), 9, edgecolor="white")
            taken.setdefault(rank, {}).setdefault(name, []).append(str(number))
        parts = (
            f"rank {rank} " + ", ".join(f"{name} {' '.join(which)}" for name, which in taken[rank].items())
            for rank in sorted(taken)
        )
        said.append(f"{way}: {'; '.join(parts)}")
    end = 0
    for name, count in names.items():
        write(axes, end + count / 2, -0.08, name, va="bottom", fontsize=11)
        end += count
        axes.axvline(end, color="#444444", linestyle="--", linewidth=1)
    axes.set(xlim=(-0.05, end + 0.05), ylim=(len(cuts), -0.5), xticks=[])
    axes.set_title(title, pad=10)
    name_rows(axes, cuts)
    legend_beside(axes, rank_swatches(sorted({rank for ranks in cuts.values() for rank in ranks})))
    return Plot(figure, f"{title}. Heads by number. {'. '.join(said)}.".replace("\n", " "))


@in_style
def shared_tokens(title: str) -> Plot:
    """What rank 0 of two has at each place of attention's half of a block, and what is sent there forward and
    backward, with tensor parallelism and with sequence parallelism too."""
    rows = {
        "tensor\nparallel": _half_a_block("all", ("nothing", "all-reduce"), ("all-reduce", "nothing")),
        "and sequence\nparallel": _half_a_block(
            "tokens", ("all-gather", "reduce-scatter"), ("reduce-scatter", "all-gather")
        ),
    }
    figure, axes = new_figure(WIDE, 1.0 + 1.5 * len(rows))
    said = []
    for row, (name, places) in enumerate(rows.items()):
        x, told = 0.0, []
        for place, kind in places:
            if isinstance(kind, tuple):
                _draw_messages(axes, x, row, place, *kind)
                told.append(f"{place} (forward {kind[0]}, backward {kind[1]})")
                x += 1.9
                continue
            _draw_activation(axes, x, row, place, kind)
            told.append(f"{place} {LANES[kind][0]}".replace("\n", ", "))
            x += 1.25
        said.append(f"{name}: {', '.join(told)}".replace("\n", " "))
    blank(axes, title=title, xlim=(-0.1, x), ylim=(len(rows), 0))
    name_rows(axes, rows)
    repeated = swatch(
        "all, which the other rank has, too", REPEATED["colour"], hatch="///", edgecolor="#888888"
    )
    handles = [
        repeated,
        swatch("its own part", owner_colour(0)),
        swatch("a summand of all", "white", **SUMMAND),
    ]
    legend_below(axes, 0.0, 3, handles)
    return Plot(figure, f"{title}. {'; '.join(said)}.")


Places = list[tuple[str, str | tuple[str, str]]]


def _half_a_block(norms: str, enter: tuple[str, str], leave: tuple[str, str]) -> Places:
    """[(place, a key of `LANES`, or what is sent there forward and backward)]."""
    inside = [("qkv, heads", "channels"), ("out", "summand")]
    return [("norm", norms), ("f", enter), *inside, ("g", leave), ("+", norms)]


def _draw_activation(axes: Axes, x: float, row: int, place: str, kind: str) -> None:
    """A matrix of tokens by channels, of which the rank's part is filled."""
    words, wide, high = LANES[kind]
    side, top = 0.8, row + 0.25
    box(axes, x + 0.1, top, side, 0.4, "white", edgecolor="#777777", linewidth=0.8)
    if kind == "summand":
        box(axes, x + 0.1, top, side, 0.4, "white", **SUMMAND)
    elif kind == "all":
        box(axes, x + 0.1, top, side, 0.4, REPEATED["colour"], hatch="///", edgecolor="#888888")
    else:
        box(axes, x + 0.1, top, side * wide, 0.4 * high, owner_colour(0))
    write(axes, x + 0.1 + side / 2, row + 0.16, place, fontsize=9)
    write(axes, x + 0.1 + side / 2, row + 0.69, words, va="top", fontsize=8)


def _draw_messages(axes: Axes, x: float, row: int, place: str, forward: str, backward: str) -> None:
    """What an operator sends in each direction; nothing is grey."""
    write(axes, x + 0.85, row + 0.16, place, fontsize=11, style="italic", weight="bold")
    for y, what, ends in ((0.37, forward, (0.05, 1.65)), (0.65, backward, (1.65, 0.05))):
        colour = "#666666" if what == "nothing" else MESSAGE
        arrow(axes, (x + ends[0], row + y), (x + ends[1], row + y), color=colour, linewidth=1.4)
        write(axes, x + 0.85, row + y - 0.08, what, fontsize=8, color=colour)


@in_style
def shared_seconds(
    bars: Mapping[str, Mapping[str, float]],
    whole: float,
    title: str,
    recorded: Mapping[str, Mapping[str, float]] | None = None,
) -> Plot:
    """What a block's seconds consist of where GPUs share it: {bar: {"divided", "repeated", "messages"}}, in
    milliseconds.

    Args:
        whole: seconds on one GPU.
        recorded: {bar: {"seconds": that a GPU was busy, "clock": that a pass took, "kernels": how many}}.
    """
    recorded = recorded or {}
    figure, axes = new_figure(WIDE, 0.9 + 0.45 * len(bars))
    colours = {"divided": owner_colour(0), "repeated": REPEATED["colour"], "messages": MESSAGE}
    said = []
    for row, (name, parts) in enumerate(bars.items()):
        end, total = 0.0, 1e3 * sum(parts.values())
        for part, seconds in parts.items():
            hatch = {"hatch": "///", "edgecolor": "#888888"} if part == "repeated" else {}
            axes.barh(row, 1e3 * seconds, 0.7, left=end, color=colours[part], label=part, **hatch)
            end += 1e3 * seconds
        times = whole / sum(parts.values())
        words = f"{total:.1f} ms" + ("" if abs(times - 1) < 0.005 else f", {times:.1f} times as fast")
        if name in recorded:
            busy, clock = 1e3 * recorded[name]["seconds"], 1e3 * recorded[name]["clock"]
            words += f"\nrecorded {busy:.1f} busy, {clock:.1f} by the clock"
            axes.plot([end, clock], [row, row], color="#777777", linewidth=1, zorder=1)
            axes.plot(busy, row, **BUSY)
            axes.plot(clock, row, **CLOCK)
            end = max(end, clock) + 0.4
        write(axes, end + 0.2, row, words, ha="left", fontsize=8.5)
        inside = ", ".join(f"{part} {1e3 * seconds:.1f}" for part, seconds in parts.items() if seconds)
        said.append(f"{name}: {total:.1f} ms ({inside})")
    axes.set(
        title=title,
        xlabel="milliseconds",
        xlim=(0, (1.5e3 if recorded else 1.1e3) * whole),
        ylim=(len(bars) - 0.4, -0.6),
    )
    axes.set_yticks(range(len(bars)), list(bars))
    bare(axes)
    axes.tick_params(axis="y", length=0)
    looks = {"hatch": "///", "edgecolor": "#888888"}
    handles = [
        swatch(part, colour, **(looks if part == "repeated" else {})) for part, colour in colours.items()
    ]
    if recorded:
        marks = {"the GPU that waited less was busy": BUSY, "by the clock": CLOCK}
        handles += [axes.plot([], [], label=words, **look)[0] for words, look in marks.items()]
    legend_under(figure, len(handles), handles)
    told = "; ".join(
        f"{name}: busy {1e3 * one['seconds']:.1f} ms, by the clock {1e3 * one['clock']:.1f} ms, "
        f"{one['kernels']} kernels"
        for name, one in recorded.items()
    )
    return Plot(figure, f"{title}. {'; '.join(said)}." + f" Recorded: {told}." * bool(told))
