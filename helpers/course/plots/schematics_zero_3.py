"""Schematics of ZeRO-3: which layers' parameters are gathered at a moment, which part each rank keeps all the
time, and prefetching."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import matplotlib
from helpers.course.plots.style import LOOK, STYLE, Plot, bare, new_figure, rectangle, write
from helpers.course.plots.timeline import timeline


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
        title: what the figure shows.
    """
    colour, _ = LOOK["parameters"]
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(len(moments), figsize=(3.2 * len(moments), 1.1 + 0.34 * ranks))
        figure.suptitle(title, fontsize=11, y=1.13)
        for axes, (name, there) in zip([panels] if len(moments) == 1 else panels, moments.items()):
            for index, layer in enumerate(layers):
                for rank in range(ranks):
                    face = (
                        {"facecolor": "#8FC1E3", "hatch": "//"}
                        if index in there
                        else {"facecolor": "#eeeeee"}
                    )
                    rectangle(
                        axes, (index + 0.05, rank + 0.1), 0.9, 0.8, edgecolor="#999999", linewidth=0.5, **face
                    )
                    rectangle(
                        axes,
                        (index + 0.05 + 0.9 * rank / ranks, rank + 0.1),
                        0.9 / ranks,
                        0.8,
                        facecolor=colour,
                    )
                write(axes, index + 0.5, -0.06, layer, va="bottom", fontsize=7)
            axes.set(xlim=(0, len(layers)), ylim=(ranks, -0.35), xticks=[])
            axes.set_title(name, fontsize=9, pad=10)
            axes.set_yticks(
                [rank + 0.5 for rank in range(ranks)],
                [f"rank {rank}" for rank in range(ranks)] if axes is figure.axes[0] else [],
            )
            axes.tick_params(length=0)
            bare(axes)
    held = {name: (len(layers) + len(there) * (ranks - 1)) / ranks for name, there in moments.items()}
    said = "; ".join(
        f"{name}: {', '.join(layers[index] for index in there) or 'nothing'} gathered, {held[name]:g} layers"
        for name, there in moments.items()
    )
    return Plot(
        figure,
        f"{title}. Of {len(layers)} layers each of {ranks} ranks holds {len(layers) / ranks:g} in "
        f"shards. {said}.",
    )


def prefetching(layers: int, sending: float, title: str) -> Plot:
    """The plan of a micro-batch under ZeRO-3, gathered as needed and one layer ahead: a forward pass takes a
    unit of time per layer, a backward two.

    One layer ahead, an all-gather starts with the visit before the one that needs it, and the last layer
    stays gathered between its two passes.

    Args:
        layers: their number.
        sending: units of time of an all-gather, and of a reduce-scatter, of one layer.
        title: what the figure shows.
    """
    visits = [("forward", layer, 1) for layer in range(1, layers + 1)] + [
        ("backward", layer, 2) for layer in range(layers, 0, -1)
    ]
    plan = {}
    for name, ahead in (("as needed", False), ("one ahead", True)):
        work, gathers, reduces, there = [], [], [], None
        for kind, layer, length in visits:
            start = work[-1][3] if work else 0.0
            if not (ahead and layer == there):
                begin = work[-1][2 if ahead else 3] if work else 0.0
                gathers.append(("all-gather", f"{layer}", begin, begin + sending))
                start = max(start, begin + sending)
            there = layer
            work.append((kind, f"{layer}", start, start + length))
            if kind == "backward":
                reduces.append(("reduce-scatter", f"{layer}", start + length, start + length + sending))
        plan |= {f"{name}: work": work, f"{name}: gathers": gathers, f"{name}: gradients": reduces}
    return timeline(plan, title, "units of time")
