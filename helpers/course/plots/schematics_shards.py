"""Schematics of what is sharded: model states, parameters and elements that each rank holds, and flat tensors
that are cut among ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from helpers.course.plots.drawing import (
    BEHIND,
    EDGE,
    EMPTY,
    blank,
    box,
    name_rows,
    new_figure,
    new_panels,
    rank_names,
    write,
)
from helpers.course.plots.style import LOOK, Plot, in_style, owner_colour

BLUE = LOOK["parameters"][0]
NAMES = {  # short enough to stand above their boxes
    "parameters": "param-\neters",
    "gradients": "gradi-\nents",
    "master weights": "master\nweights",
    "optimizer states": "Adam's momentum\nand variance",
}
APART = 2.2  # boxes between two parameters


def _held(axes, left, width, ranks, sharded, colour, hatch="", ground=None):
    """A box on every rank's row.  What the rank holds has the colour: its shard, or all of the box."""
    ground = {"colour": EMPTY, "edgecolor": EDGE, "linewidth": 0.5, **(ground or {})}
    part = width / ranks if sharded else width
    for rank in range(ranks):
        box(axes, left, rank + 0.1, width, 0.8, **ground)
        start = left + rank * part if sharded else left
        if colour:
            box(axes, start, rank + 0.1, part, 0.8, colour, hatch=hatch, edgecolor="white", linewidth=0.5)


@in_style
def zero_states(
    held: Mapping[str, Mapping[str, float]], replicated: Mapping[str, float], ranks: int, title: str
) -> Plot:
    """The model states of a training job, a row for each rank: what it holds has a colour, what other ranks
    hold for it is grey.

    Args:
        held: {panel: {category: bytes per parameter that one rank holds}}, for instance {"ZeRO-1":
            theory.ideal_bytes(1, 4, stage=1)}.
        replicated: {category: bytes per parameter of a full copy}, `theory.ideal_bytes(1)`.
        ranks: N; a category of which a rank holds less than a full copy is cut in N equal shards, and rank r
            holds the r-th.
    """
    width, said = sum(replicated.values()), []
    figure, panels = new_panels(len(held), 4.0, 1.1 + 0.42 * ranks, title)
    for axes, (name, sizes) in zip(panels, held.items()):
        ends, parts, together = [0.0], [], sum(sizes.values())
        for category, full in replicated.items():
            _held(axes, ends[-1], full, ranks, sizes[category] < full, *LOOK[category])
            above = NAMES.get(category, category)
            write(axes, ends[-1] + full / 2, -0.05, above, va="bottom", fontsize=6.5)
            ends.append(ends[-1] + full)
            parts.append(f"{category} {sizes[category]:.3g} of {full:.3g}")
        for rank in range(ranks):
            write(axes, width + 0.2, rank + 0.5, f"{together:.3g}", ha="left", fontsize=9)
        axes.set(xlim=(0, width + 1.6), ylim=(ranks, -0.75), xticks=ends)
        axes.set_xlabel("bytes per parameter, and their sum on each rank")
        axes.set_title(name, fontsize=10)
        name_rows(axes, rank_names(ranks))
        said.append(f"{name}: {', '.join(parts)}; together {together:.3g}")
    return Plot(figure, f"{title}. Bytes per parameter on each of {ranks} ranks. {'; '.join(said)}.")


@in_style
def construction(modules: Mapping[str, int], ranks: int, at: str, title: str) -> Plot:
    """Two panels, a row for each rank: the model built in full, and partitioned as it is built, when module
    `at` has just been made.

    Args:
        modules: {name: elements}, in the order of construction.
        ranks: N; a module that is complete is cut in N equal shards, and rank r keeps the r-th.
        at: the name of the module that has just been built and is not yet cut.
    """
    names, total = list(modules), sum(modules.values())
    if at not in names:
        raise ValueError(f"there is no module {at!r}; there are {', '.join(names)}")
    now, said = names.index(at), []
    figure, panels = new_panels(2, 5, 1.2 + 0.4 * ranks, title)
    ways = {"in full on every rank": False, "partitioned as it is built": True}
    for axes, (way, sharded) in zip(panels, ways.items()):
        left, held = 0.0, 0.0
        for index, (name, elements) in enumerate(modules.items()):
            if index < now:
                _held(axes, left, elements, ranks, sharded, BLUE)
                held += elements / ranks if sharded else elements
            elif index == now:
                _held(axes, left, elements, ranks, False, BLUE, "//")
                held += elements
            else:
                _held(axes, left, elements, ranks, False, None, ground={"colour": "white", "linestyle": ":"})
            weight = "bold" if name == at else None
            write(axes, left + elements / 2, -0.08, name, va="bottom", fontsize=7, weight=weight)
            left += elements
        axes.set_title(way, fontsize=10, pad=14)
        blank(axes, xlim=(-0.01 * total, 1.01 * total), ylim=(ranks, -0.5))
        name_rows(axes, rank_names(ranks))
        said.append(f"{way}: {held:,.0f} elements on each rank")
    built = f"{at} has just been built, {now + 1} of {len(names)} modules"
    return Plot(figure, f"{title}. {built}. {'; '.join(said)}.")


@in_style
def gathered_layers(
    moments: Mapping[str, Collection[int]], layers: Sequence[str], ranks: int, title: str
) -> Plot:
    """A model's layers at some moments: a panel per moment, a row per rank, a box per layer.

    Of each layer a rank fills its own shard, 1/N of the box; where the layer is gathered at that moment, the
    rest of the box is filled too, lighter, on every rank.

    Args:
        moments: {panel: indices of the layers that are gathered then}.
        layers: names of the layers, in order.
        ranks: N.
    """
    figure, panels = new_panels(len(moments), 3.2, 1.1 + 0.34 * ranks, title, y=1.13)
    said = []
    for axes, (name, gathered) in zip(panels, moments.items()):
        for index, layer in enumerate(layers):
            ground = {"colour": "#8FC1E3", "hatch": "//"} if index in gathered else None
            _held(axes, index + 0.05, 0.9, ranks, True, BLUE, ground=ground)
            write(axes, index + 0.5, -0.06, layer, va="bottom", fontsize=7)
        blank(axes, xlim=(0, len(layers)), ylim=(ranks, -0.35))
        axes.set_title(name, fontsize=9, pad=10)
        words = ", ".join(layers[index] for index in gathered) or "nothing"
        held = (len(layers) + len(gathered) * (ranks - 1)) / ranks
        said.append(f"{name}: {words} gathered, {held:g} layers")
    name_rows(panels[0], rank_names(ranks))
    shards = f"Of {len(layers)} layers each of {ranks} ranks holds {len(layers) / ranks:g} in shards"
    return Plot(figure, f"{title}. {shards}. {'; '.join(said)}.")


@in_style
def flat_buckets(
    elements: Mapping[str, int], part: int, buckets: Mapping[str, Sequence[str]], title: str
) -> Plot:
    """A flat tensor of gradients cut at its partition boundaries, and below it the buckets of a backward
    pass: each piece in its owner's colour.

    Args:
        elements: {parameter: its elements}, in the model's order.
        part: elements of a rank's partition.
        buckets: {row: the parameters in it}, in the order in which they fill.
    """
    starts, total, said = {}, 0, []
    for parameter, count in elements.items():
        starts[parameter], total = total, total + count
    rows, ranks = {"flat tensor": list(elements), **buckets}, -(-total // part)
    label = {"fontsize": 8, "bbox": {**BEHIND, "alpha": 0.85, "pad": 1.2}}
    figure, axes = new_figure(9, 0.9 + 0.6 * len(rows))
    for row, (name, parameters) in enumerate(rows.items()):
        owned = dict.fromkeys(range(ranks), 0)
        for parameter in parameters:
            begin, count = starts[parameter], elements[parameter]
            for owner in range(ranks):
                left, right = max(begin, owner * part), min(begin + count, (owner + 1) * part)
                if left < right:
                    box(axes, left, row + 0.2, right - left, 0.6, owner_colour(owner), linewidth=0)
                    owned[owner] += right - left
            box(axes, begin, row + 0.2, count, 0.6, "none", edgecolor="white", linewidth=1.5)
            write(axes, begin + count / 2, row + 0.5, parameter, **label)
        pieces = (f"{count} elements of rank {owner}" for owner, count in owned.items() if count)
        said.append(f"{name}: {', '.join(pieces)}")
    for owner in range(ranks):
        write(axes, (owner + 0.5) * part, 0.08, f"owner: rank {owner}", fontsize=8)
        if owner:
            axes.plot([owner * part] * 2, [0, len(rows)], color="black", linewidth=1.5, linestyle="--")
    axes.set(title=title, xlabel="place in the flat tensor, elements")
    axes.set(xlim=(-0.01 * total, 1.02 * ranks * part), ylim=(len(rows), -0.1))
    name_rows(axes, rows)
    return Plot(figure, f"{title}. {'; '.join(said)}.")


@in_style
def sharded_elements(
    ways: Mapping[str, Callable[[tuple[int, int], int], Sequence[int]]],
    shapes: Mapping[str, tuple[int, int]],
    ranks: int,
    title: str,
) -> Plot:
    """Every element of a few parameters as a box in the colour of the rank that keeps it: a panel for each
    way to cut.

    Args:
        ways: {panel: function of (shape, ranks) that returns the rank of every element, row by row}.
        shapes: {parameter: (rows, columns)}.
        ranks: N, at most 8.
    """
    tall = max(rows for rows, _ in shapes.values())
    wide = sum(columns + APART for _, columns in shapes.values())
    figure, panels = new_panels(len(ways), 0.32 * wide, 0.7 + 0.32 * tall, title, y=1.1)
    said = []
    for axes, (way, owner) in zip(panels, ways.items()):
        left, words = 0.0, []
        for name, (rows, columns) in shapes.items():
            owners = owner((rows, columns), ranks)
            write(axes, left, -0.2, f"{name}\n{rows} × {columns}", fontsize=8, ha="left", va="bottom")
            for place, rank in enumerate(owners):
                x, y = left + place % columns, place // columns
                box(axes, x, y, 0.94, 0.92, owner_colour(rank), f"{rank}", 7, edgecolor="none")
            words.append(f"{name} {', '.join(f'{owners.count(rank)}' for rank in range(ranks))}")
            left += columns + APART
        blank(axes, xlim=(-0.1, wide), ylim=(tall, -1.6), aspect="equal")
        axes.set_title(way, fontsize=9)
        said.append(f"{way}: {'; '.join(words)}")
    return Plot(figure, f"{title}. Elements on ranks 0 to {ranks - 1}. {'. '.join(said)}.")
