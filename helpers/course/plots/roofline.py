"""What a machine can do at best, over the arithmetic intensity of the work."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import matplotlib
from helpers.course.plots.style import LINES, MARKERS, STYLE, Plot, check_told_apart, new_figure
from helpers.tools.theory.roofline import MachineConstants, ridge, roofline_rate

RATES = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"))


def roofline(
    machine: MachineConstants, points: Mapping[str, tuple[float, float]], title: str, dtype: str = "bf16"
) -> Plot:
    """The roofline of a machine on logarithmic axes, with its ridge, and measured work as points (Williams et
    al., 2009).

    Args:
        machine: a `theory.MachineConstants`: the roof is its best matrix rate, the slope its memory
            bandwidth.
        points: {name: (FLOPs per byte, FLOPs per second)}, both positive; may be empty.
        title: what the figure shows.
        dtype: "bf16" or "fp32", of the roof.

    Returns:
        A `Plot`; its sentence gives the ridge, and of each point the part of what is attainable there.

    Raises:
        ValueError: for a point that has no place on logarithmic axes, more points than can be told apart, or
            a dtype that was not measured.
    """
    if wrong := [name for name, place in points.items() if not all(number > 0 for number in place)]:
        raise ValueError(
            f"FLOPs per byte and FLOPs per second must be positive, and are not for {', '.join(wrong)}"
        )
    check_told_apart(points, len(LINES) * len(MARKERS), "points")
    peak, corner = machine.peak(dtype), ridge(machine.peak(dtype), machine.memory)
    divisor, unit = next((pair for pair in RATES if peak >= pair[0]), RATES[-1])
    left = min([corner / 30, *(intensity / 2 for intensity, _ in points.values())])
    right = max([corner * 30, *(intensity * 2 for intensity, _ in points.values())])
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure()
        line = [left, corner, right]
        axes.plot(
            line,
            [roofline_rate(place, peak, machine.memory) / divisor for place in line],
            color="black",
            label="at best",
        )
        axes.axvline(corner, color="black", linestyle=":", linewidth=0.8, label="ridge")
        for (marker, colour), (name, (intensity, rate)) in zip(product(MARKERS, LINES), points.items()):
            axes.plot(
                [intensity], [rate / divisor], marker, color=colour, markerfacecolor="white", label=name
            )
        axes.set(
            title=title,
            xlabel="arithmetic intensity, FLOPs per byte",
            ylabel=unit,
            xscale="log",
            yscale="log",
        )
        axes.grid(True, axis="both")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    best = f"at best {peak / divisor:,.3g} {unit}, from the ridge at {corner:,.3g} FLOPs per byte on"
    said = [f"{best}; memory {machine.memory / 1e9:,.1f} GB/s"]
    for name, (intensity, rate) in points.items():
        part = rate / roofline_rate(intensity, peak, machine.memory)
        said.append(
            f"{name}: {intensity:,.3g} FLOPs per byte, {rate / divisor:,.3g} {unit}, "
            f"{100 * part:.0f} % of what is attainable there"
        )
    return Plot(figure, f"{title}. {'; '.join(said)}.".replace("\n", " "))
