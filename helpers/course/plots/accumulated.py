"""What is held of something over a step, above the messages that carry it: gradients that are added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.figure import Figure
from helpers.course.plots.drawing import box, darkened, name_rows, write
from helpers.course.plots.style import LINES, WIDE, WRONG, Plot, check_told_apart, in_style

Course = Sequence[tuple[float, float]]  # (time, amount from then on), in order
Message = tuple[float, float]  # its begin and its end


@in_style
def held_and_sent(
    held: Mapping[str, Course],
    sent: Mapping[str, Sequence[Message]],
    title: str,
    y: str,
    passes: Mapping[str, tuple[float, float]],
    limit: tuple[str, float] | None = None,
) -> Plot:
    """Steps of each way's amount over time, and below a row for each way's messages on the same axis.

    Args:
        held: {way: its course}; the same ways as in `sent`, each with one color.
        passes: {name: when it begins and ends}, columns; a name that ends with a space is not written.
        limit: (words, an amount), a red line.
    """
    check_told_apart(held, len(LINES), "ways")
    figure = Figure(figsize=(WIDE, 3.5 + 0.3 * len(sent)))
    figure.suptitle(title, fontsize=11)
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, 0.3 * len(sent)))
    last = max(end for _, end in passes.values())
    last = max([last, *(end for rows in sent.values() for _, end in rows)])
    most = max([amount for course in held.values() for _, amount in course] + [limit[1] if limit else 0])
    colours, said = dict(zip(held, LINES)), []
    for way, course in held.items():
        times, amounts = zip(*course)
        top.step([*times, last], [*amounts, amounts[-1]], where="post", color=colours[way], linewidth=1.5)
        at, height = max(course, key=lambda point: (round(point[1], 1), -point[0]))
        words = f"{way}: {amounts[-1]:.3g}" + (f", at most {height:.3g}" if height > amounts[-1] else "")
        look = {"color": darkened(colours[way]), "ha": "right", "va": "bottom", "fontsize": 9}
        write(top, last, height + 0.012 * most, words, **look)
        said.append(f"{way} at most {height:.3g}, first at {at:.3g}")
    if limit:
        top.axhline(limit[1], color=WRONG, linewidth=2)
        write(top, last, limit[1] + 0.012 * most, limit[0], color=WRONG, ha="right", va="bottom", fontsize=9)
    top.set(ylabel=y, ylim=(0, 1.16 * most), xlim=(0, 1.005 * last))
    for (name, (begin, end)), shade in zip(passes.items(), [0.0, 0.06] * len(passes)):
        for axes in (top, below):
            axes.axvspan(begin, end, color="black", alpha=shade, linewidth=0)
        if not name.endswith(" "):
            write(top, (begin + end) / 2, 1.14 * most, name, fontsize=8, va="top")
    top.grid(False, axis="x")
    for row, (way, messages) in enumerate(sent.items()):
        for begin, end in messages:
            box(below, begin, row + 0.2, end - begin, 0.6, colours[way])
    below.set(ylim=(len(sent), 0), xlabel="seconds; boxes: when gradients are sent")
    name_rows(below, sent)
    counted = "; ".join(f"{way} {_blocks(messages)}" for way, messages in sent.items())
    line = f" The line: {limit[0]}." if limit else ""
    return Plot(figure, f"{title}. {y}: {'; '.join(said)}.{line} Times of sending: {counted}.")


def _blocks(messages: Sequence[Message]) -> int:
    """Stretches of messages without a gap between them."""
    return 1 + sum(end < begin - 1e-9 for (_, end), (begin, _) in pairwise(messages)) if messages else 0
