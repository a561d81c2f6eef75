"""Schematics of ZeRO: which part of the model states each rank holds, and where a flat tensor of parameters
is cut among ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from helpers.course.plots.style import LOOK, PARTS, STYLE, Plot, bare, new_figure, rectangle, write
from helpers.course.plots.timeline import timeline

NAMES = {  # short enough to stand above their boxes
    "parameters": "param-\neters",
    "gradients": "gradi-\nents",
    "master weights": "master\nweights",
    "optimizer states": "Adam's momentum\nand variance",
}
LABEL = {
    "facecolor": "white",
    "edgecolor": "none",
    "alpha": 0.85,
    "pad": 1.2,
}  # behind words that stand on a coloured box


def zero_states(
    held: Mapping[str, Mapping[str, float]], replicated: Mapping[str, float], ranks: int, title: str
) -> Plot:
    """The model states of a training job, a row for each rank: filled what the rank holds, outlined what
    other ranks hold for it.

    Args:
        held: {panel: {category: bytes per parameter that one rank holds}}, for instance {"ZeRO-1":
        theory.ideal_bytes(1, 4, stage=1)}. replicated: {category: bytes per parameter of a full copy},
        `theory.ideal_bytes(1)`.
        ranks: N; a category of which a rank holds less than a full copy is cut in N equal shards, and rank r
            holds the r-th.
        title: what the figure shows.
    """
    width = sum(replicated.values())
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(len(held), figsize=(4.6 * len(held), 1.1 + 0.42 * ranks))
        figure.suptitle(title, fontsize=11)
        for axes, (name, own) in zip([panels] if len(held) == 1 else panels, held.items()):
            left = 0.0
            for category, full in replicated.items():
                colour, hatch = LOOK[category]
                sharded = own[category] < full
                piece = full / ranks if sharded else full
                for rank in range(ranks):
                    rectangle(
                        axes,
                        (left, rank + 0.12),
                        full,
                        0.76,
                        facecolor="#eeeeee",
                        edgecolor="#999999",
                        linewidth=0.5,
                    )
                    rectangle(
                        axes,
                        (left + (rank * piece if sharded else 0), rank + 0.12),
                        piece,
                        0.76,
                        facecolor=colour,
                        hatch=hatch,
                        edgecolor="white",
                        linewidth=0.5,
                    )
                write(axes, left + full / 2, -0.05, NAMES.get(category, category), va="bottom", fontsize=6.5)
                left += full
            for rank in range(ranks):
                axes.text(width + 0.2, rank + 0.5, f"{sum(own.values()):.3g}", va="center", fontsize=9)
            axes.set(
                xlim=(0, width + 1.6),
                ylim=(ranks, -0.75),
                xlabel="bytes per parameter, and their sum on each rank",
            )
            axes.set_title(name, fontsize=10)
            axes.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
            axes.set_xticks([sum(list(replicated.values())[:count]) for count in range(len(replicated) + 1)])
            axes.tick_params(axis="y", length=0)
            bare(axes)
    said = []
    for name, own in held.items():
        parts = (f"{category} {own[category]:.3g} of {full:.3g}" for category, full in replicated.items())
        said.append(f"{name}: {', '.join(parts)}; together {sum(own.values()):.3g}")
    return Plot(figure, f"{title}. Bytes per parameter on each of {ranks} ranks. {'; '.join(said)}.")


def flat_partition(elements: Mapping[str, int], cuts: Mapping[str, Sequence[int]], title: str) -> Plot:
    """Parameters one after another in a flat tensor, padding at its end, and the boundaries at which it is
    cut among ranks: a row for each job.

    Args:
        elements: {parameter: its elements}, in the model's order.
        cuts: {row: elements of each rank's partition}; what the partitions have more than the parameters is
            padding.
        title: what the figure shows.
    """
    total, said = sum(elements.values()), []
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 0.9 + 0.75 * len(cuts)))
        for row, (name, parts) in enumerate(cuts.items()):
            offset = 0
            for index, (parameter, count) in enumerate(elements.items()):
                colour = PARTS[index % len(PARTS)]
                rectangle(axes, (offset, row + 0.25), count, 0.5, facecolor=colour, edgecolor="white")
                light = colour in ("#88CCEE", "#DDCC77")
                write(
                    axes,
                    offset + count / 2,
                    row + 0.5,
                    parameter,
                    fontsize=8,
                    color="black" if light else "white",
                )
                offset += count
            if padding := sum(parts) - total:
                rectangle(
                    axes,
                    (offset, row + 0.25),
                    padding,
                    0.5,
                    facecolor="white",
                    hatch="xxx",
                    edgecolor="#999999",
                )
            at = 0
            for rank, part in enumerate(parts):
                write(axes, at + part / 2, row + 0.15, f"rank {rank}", fontsize=8)
                at += part
                axes.plot([at, at], [row + 0.08, row + 0.88], color="black", linewidth=2)
            axes.plot([0, 0], [row + 0.08, row + 0.88], color="black", linewidth=2)
            said.append(
                f"{name}: partitions of {', '.join(str(part) for part in parts)} elements, "
                f"{padding} of them padding"
            )
        most = max(sum(parts) for parts in cuts.values())
        axes.set(title=title, xlabel="elements", xlim=(-0.01 * most, 1.01 * most), ylim=(len(cuts), 0))
        axes.set_yticks([row + 0.5 for row in range(len(cuts))], list(cuts))
        axes.tick_params(axis="y", length=0)
        bare(axes)
    return Plot(figure, f"{title}. {total} elements in {len(elements)} parameters. {'; '.join(said)}.")


def flat_buckets(
    elements: Mapping[str, int], part: int, buckets: Mapping[str, Sequence[str]], title: str
) -> Plot:
    """A flat tensor of gradients cut at its partition boundaries, and below it the buckets of a backward
    pass: each piece in its owner's colour.

    Args:
        elements: {parameter: its elements}, in the model's order.
        part: elements of a rank's partition.
        buckets: {row: the parameters in it}, in the order in which they fill.
        title: what the figure shows.
    """
    starts, total, said = {}, 0, []
    for parameter, count in elements.items():
        starts[parameter], total = total, total + count
    rows = {"flat tensor": list(elements), **buckets}
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 0.9 + 0.6 * len(rows)))
        for row, (name, parameters) in enumerate(rows.items()):
            owners = {}
            for parameter in parameters:
                begin, end = starts[parameter], starts[parameter] + elements[parameter]
                for owner in range(begin // part, (end - 1) // part + 1):
                    left, right = max(begin, owner * part), min(end, (owner + 1) * part)
                    colour = PARTS[owner % len(PARTS)]
                    rectangle(axes, (left, row + 0.2), right - left, 0.6, facecolor=colour, linewidth=0)
                    owners[owner] = owners.get(owner, 0) + right - left
                rectangle(
                    axes,
                    (begin, row + 0.2),
                    end - begin,
                    0.6,
                    facecolor="none",
                    edgecolor="white",
                    linewidth=1.5,
                )
                write(axes, (begin + end) / 2, row + 0.5, parameter, fontsize=8, bbox=LABEL)
            said.append(
                f"{name}: "
                + ", ".join(f"{count} elements of rank {owner}" for owner, count in sorted(owners.items()))
            )
        for owner in range(1, -(-total // part)):
            axes.plot([owner * part] * 2, [0, len(rows)], color="black", linewidth=1.5, linestyle="--")
        for owner in range(-(-total // part)):
            write(axes, (owner + 0.5) * part, 0.08, f"owner: rank {owner}", fontsize=8)
        axes.set(
            title=title,
            xlabel="place in the flat tensor, elements",
            xlim=(-0.01 * total, 1.02 * -(-total // part) * part),
            ylim=(len(rows), -0.1),
        )
        axes.set_yticks([row + 0.5 for row in range(len(rows))], list(rows))
        axes.tick_params(axis="y", length=0)
        bare(axes)
    return Plot(figure, f"{title}. {'; '.join(said)}.")


def reductions_in_a_step(plans: Mapping[str, Sequence[bool]], title: str, buckets: int = 3) -> Plot:
    """The plan of an optimizer step in which the work waits for every message: a row for each plan, in units
    of a bucket's backward pass.

    Args:
        plans: {row: for each micro-batch whether its gradients are reduced}.
        title: what the figure shows.
        buckets: gradients of a micro-batch fill so many, and each is reduced as soon as it is full.
    """
    rows = {}
    for name, sends in plans.items():
        boxes = []
        for reduces in sends:
            one_bucket = [("backward", "", 1.0), *[("reduce", "", 0.5)] * reduces]
            boxes += [("forward", "forward", 1.5), *one_bucket * buckets]
        boxes += [("optimizer", "", 0.5), ("all-gather", "", 1.0)]
        ends = [sum(length for *_, length in boxes[:done]) for done in range(len(boxes) + 1)]
        rows[name] = [
            (kind, label, start, end) for (kind, label, _), start, end in zip(boxes, ends, ends[1:])
        ]
    return timeline(rows, title, "units of time")
