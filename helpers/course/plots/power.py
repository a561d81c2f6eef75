"""How busy GPUs look, and what they draw, when a job hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.course.plots.drawing import new_panels
from helpers.course.plots.style import LINES, WIDE, Plot, in_style

if TYPE_CHECKING:
    from helpers.course.recorded.hanging import Hang


@in_style
def hanging(hang: Hang, title: str) -> Plot:
    """Utilisation and power of each rank's GPU over time, before and after the hang, and a line at a healthy
    run's."""
    figure, panels = new_panels(2, WIDE / 2, 2.9, title, y=1.08)
    names = [f"rank {rank}'s GPU" for rank in range(len(hang.gpus[0][1]))]
    at = [seconds for seconds, _ in hang.gpus]
    for panel, what, of, healthy in zip(panels, ("utilisation, %", "power, W"), (0, 1), hang.healthy):
        for rank, colour in zip(range(len(names)), LINES):
            panel.plot(at, [gpus[rank][of] for _, gpus in hang.gpus], color=colour, label=names[rank])
        panel.axhline(healthy, color="0.35", linestyle="--", linewidth=1.2, label="a healthy run")
        panel.axvline(0, color="0.35", linewidth=1)
        panel.set(xlabel="seconds after the hang", ylabel=what, xlim=(at[0], 30), ylim=(0, 1.15 * healthy))
    panels[1].legend(loc="center right")
    middle = [
        f"{name} {hang.utilisation(rank):.0f} % busy at {hang.power(rank):.0f} W"
        for rank, name in enumerate(names)
    ]
    share, power = hang.healthy
    return Plot(figure, f"{title}. {'; '.join(middle)}; in a healthy run {share:.0f} % at {power:.0f} W.")
