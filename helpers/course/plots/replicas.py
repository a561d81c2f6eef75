"""Replicas of a model: who holds what, and a step's work and messages over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from helpers.course.plots.drawing import arrow, bare, blank, box, ink, new_figure, write
from helpers.course.plots.style import LOOK, WIDE, WRONG, Plot, in_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from helpers.course.job.more_gpus import Pass

    Layers = Sequence[tuple[str, float, float, float, float]]

# Work has colours that no category of memory has.
WORK = {"forward": "#E8DDA8", "backward": "#C9AE4A", "update": "#AA4499"}
MESSAGE, WAITED = "#117733", "#88B89A"
OWN = ("#F3B183", "#E58A4E", "#B84F00")  # gradients that differ from GPU to GPU
ROWS = ("#CFCFCF", "#AFAFAF", "#8F8F8F")
HEADS = (
    (0.75, "the same\nweights"),
    (3.0, "its own 8 of\n64 sequences"),
    (5.25, "its own\ngradient"),
    (7.05, "one\nmessage"),
    (8.85, "the same\ngradient"),
    (11.2, "the same update:\nequal weights again"),
)


@in_style
def replicated_step(gigabytes: float, seconds: Mapping[str, float], lens: Pass, title: str) -> Plot:
    """The whole idea: what each of eight GPUs holds, a step to scale, and its last backward pass.

    Args:
        gigabytes: of weights, and of gradients.
        seconds: of a micro-batch's "forward" and "backward", and of the "update".
        lens: the last backward pass, layer by layer.
    """
    figure = Figure(figsize=(WIDE, 7.4))
    figure.suptitle(title, fontsize=11)
    flow, strip, last = figure.subplots(3, 1, height_ratios=(3.3, 1.0, 1.5))
    _flow(flow, f"{gigabytes:.1f} GB")
    begin, total = _strip(strip, seconds, lens.message)
    _lanes(last, lens.layers, {0, len(lens.layers) // 2 - 1, len(lens.layers) - 2})
    write(last, lens.layers[-1][1] + 0.015, 1.5, "embedding", ha="left", fontsize=7.5)
    last.set(xlim=(0, 1.12 * lens.work), ylim=(0, 2.05))
    last.set_xlabel("seconds of the last backward pass: each layer's gradient could leave where its box ends")
    for x, corner in ((begin, 0.0), (begin + lens.work, lens.work)):
        line = {"color": "#999999", "linewidth": 0.8, "axesA": strip, "axesB": last}
        figure.add_artist(ConnectionPatch((x, 0), (corner, 1.95), "data", "data", **line))
    said = (
        f"{title}. Each of 8 GPUs holds the same {gigabytes:.1f} GB of weights, reads 8 of 64 sequences and "
        f"makes as many bytes of gradients; an all-reduce gives all the same mean, and all make the same "
        f"update. Of {total:.2f} s eight forward passes take {seconds['forward']:.2f} s each, eight backward "
        f"passes {seconds['backward']:.2f} s, the all-reduce {lens.message:.2f} s, and the update "
        f"{seconds['update']:.2f} s."
    )
    return Plot(figure, said)


def _flow(axes: Axes, size: str) -> None:
    blank(axes, xlim=(-1.35, 12.3), ylim=(-0.1, 4.25))
    for x, words in HEADS:
        write(axes, x, 3.85, words, fontsize=9)
    weights, mean = LOOK["parameters"][0], LOOK["gradients"][0]
    names = (("GPU 0", 2.5, "0 to 7"), ("GPU 1", 1.5, "8 to 15"), ("GPU 7", 0.0, "56 to 63"))
    for (name, y, which), grey, own in zip(names, ROWS, OWN):
        write(axes, -0.25, y + 0.4, name, ha="right", fontsize=9)
        for x, wide, colour, words in (
            (0, 1.5, weights, size),
            (2.1, 1.8, grey, which),
            (4.5, 1.5, own, size),
            (8.1, 1.5, mean, size),
            (10.45, 1.5, weights, size),
        ):
            box(axes, x, y, wide, 0.8, colour, words, 8.5)
        for left, right in ((1.5, 2.1), (3.9, 4.5), (6.0, 6.6), (7.5, 8.1), (9.6, 10.45)):
            arrow(axes, (left, y + 0.4), (right, y + 0.4), color="#444444", mutation_scale=9)
    box(axes, 6.6, 0, 0.9, 3.3, MESSAGE)
    write(axes, 7.05, 1.65, "all-reduce: the mean of eight", rotation=90, color="white", fontsize=9)
    write(axes, -0.25, 1.15, "⋮", ha="right", fontsize=12)


def _strip(axes: Axes, seconds: Mapping[str, float], message: float) -> tuple[float, float]:
    """A step of eight micro-batches; (begin of the last backward pass, end of the step)."""
    now = 0.0
    for _ in range(8):
        for kind in ("forward", "backward"):
            box(axes, now, 0, seconds[kind], 1, WORK[kind], edgecolor="white", linewidth=0.6)
            now += seconds[kind]
    write(axes, 0, 1.3, f"forward {seconds['forward']:.2f} s", ha="left", fontsize=8)
    middle = seconds["forward"] + seconds["backward"] / 2
    words = f"backward\n{seconds['backward']:.2f} s"
    write(axes, middle, 0.5, words, fontsize=8, color=ink(WORK["backward"]))
    box(axes, now, 0, message, 1, MESSAGE)
    box(axes, now + message, 0, seconds["update"], 1, WORK["update"])
    total = now + message + seconds["update"]
    for at, x, side, words in (
        (now + message / 2, now - 0.25, "right", f"all-reduce {message:.2f} s"),
        (
            now + message + seconds["update"] / 2,
            now + message + 0.15,
            "left",
            f"update {seconds['update']:.2f} s",
        ),
    ):
        write(axes, x, 1.35, words, fontsize=8, ha=side)
        axes.plot([x, at], [1.35, 1.0], color="#444444", linewidth=0.7)
    axes.set(xlim=(0, 1.05 * total), ylim=(0, 1.6), yticks=[], xticks=[])
    axes.set_title(
        f"a step of {total:.2f} s, to scale: eight micro-batches of one sequence, and the message at the end",
        fontsize=9.5,
        loc="left",
        pad=8,
    )
    bare(axes)
    return now - seconds["backward"], total


def _lanes(axes: Axes, layers: Layers, named: set[int]) -> None:
    """Work above, messages below."""
    for place, (name, start, ready, begin, end) in enumerate(layers):
        words = name if place in named and name != "head" else ""
        if name == "head":
            write(axes, (start + ready) / 2, 1.5, name, rotation=90, fontsize=7.5)
        box(
            axes,
            start,
            1.1,
            ready - start,
            0.8,
            WORK["backward"],
            words,
            7.5,
            edgecolor="white",
            linewidth=0.6,
        )
        thin = end - begin < 0.008  # of seconds: a white edge would hide it
        edge = MESSAGE if thin else "white"
        box(axes, begin, 0.1, end - begin, 0.8, MESSAGE, edgecolor=edge, linewidth=0.5)
    axes.set_yticks([0.5, 1.5], ["messages", "GPU computes"])
    axes.tick_params(axis="y", length=0)
    bare(axes)


def _left_over(axes: Axes, work: float, end: float, words: str, least: float) -> None:
    """What sticks out of a pass."""
    axes.axvline(work, color="black", linewidth=1, linestyle="--")
    if end - work >= least:
        axes.annotate("", (work, 1.35), (end, 1.35), arrowprops={"arrowstyle": "<->", "color": WRONG})
        write(axes, (work + end) / 2, 1.65, words, color=WRONG, fontsize=9)
    else:
        write(axes, max(work, end) + 0.1 * least, 0.5, words, ha="left", color=WRONG, fontsize=9)


@in_style
def last_passes(passes: Mapping[str, Pass], title: str | Callable) -> Plot:
    """The last backward pass and its messages in a few places, on one axis.

    Args:
        title: or a function of the exposed seconds in each place.
    """
    figure = Figure(figsize=(WIDE, 1.75 * len(passes) + 0.5))
    panels = figure.subplots(len(passes), 1, sharex=True, squeeze=False)[:, 0]
    end, said = max(one.layers[-1][-1] for one in passes.values()), []
    for axes, (name, one) in zip(panels, passes.items()):
        _lanes(axes, one.layers, {0, len(one.layers) // 2 - 1, len(one.layers) - 2})
        words = (
            f"{one.exposed:.2f} s exposed" if one.exposed >= 0.05 else f"{1e3 * one.exposed:.0f} ms exposed"
        )
        _left_over(axes, one.work, one.layers[-1][-1], words, 0.15)
        axes.set_title(name, fontsize=9.5, loc="left")
        axes.set(ylim=(0, 2.1), xlim=(0, 1.05 * end))
        said.append(f"{name}: {one.message:.2f} s of messages, {words}")
    panels[-1].set_xlabel("seconds since the last backward pass began, computed")
    words = title([one.exposed for one in passes.values()]) if callable(title) else title
    figure.suptitle(words, fontsize=11)
    return Plot(figure, f"{words}. {'; '.join(said)}; the pass takes {one.work:.2f} s.")


@in_style
def clocked_passes(
    spans: Mapping[str, Sequence[tuple[str, float, float]]],
    seconds: Mapping[str, float],
    title: str,
    predicted: Mapping[str, float] | None = None,
) -> Plot:
    """Backward passes by the clock: what a rank and its link did, and when all means were there.

    Args:
        spans: {way: (kind, begin, end) in seconds}, work as "backward".
        seconds: {way: until all means were there}.
        predicted: {way: seconds}, or nothing, where no prediction is drawn.
    """
    figure = Figure(figsize=(WIDE, 1.3 * len(spans) + 0.7))
    figure.suptitle(title, fontsize=11)
    panels = figure.subplots(len(spans), 1, sharex=True, squeeze=False)[:, 0]
    longest, said = max([*seconds.values(), *(predicted or {}).values()]), []
    for axes, (way, boxes) in zip(panels, spans.items()):
        for kind, begin, end in boxes:
            is_work = kind == "backward"
            colour, bottom = (WORK["backward"], 1.1) if is_work else (MESSAGE, 0.1)
            box(axes, 1e3 * begin, bottom, 1e3 * (end - begin), 0.8, colour, edgecolor="white", linewidth=0.6)
        worked, end = (
            1e3 * one for one in (max(z for kind, _, z in boxes if kind == "backward"), seconds[way])
        )
        axes.plot([worked, end], [1.5, 1.5], color=WRONG, linewidth=2)
        write(axes, end + 6, 1.5, f"idle for {end - worked:.0f} ms", ha="left", fontsize=8.5, color=WRONG)
        words = f"{way}: all means there at {end:.0f}, idle for {end - worked:.0f}"
        if predicted:
            due = 1e3 * predicted[way]
            axes.plot([due] * 2, [0, 1.3], color="black", linestyle="--", linewidth=1)
            write(axes, max(due, end) + 6, 0.5, f"predicted {due:.0f}", ha="left", fontsize=8)
            words += f", predicted {due:.0f}"
        said.append(words)
        axes.set(xlim=(0, 1.2e3 * longest), ylim=(0, 2.05))
        axes.set_title(way, fontsize=9.5, loc="left")
        axes.set_yticks([0.5, 1.5], ["link", "rank works"])
        axes.tick_params(axis="y", length=0)
        bare(axes)
    panels[-1].set_xlabel("milliseconds since the backward pass began")
    return Plot(figure, f"{title}, ms. {'; '.join(said)}.")


@in_style
def longer_passes(passes: Mapping[str, tuple[float, float]], message: float, title: str) -> Plot:
    """Recorded backward passes beside two ideals: all of a message is hidden for nothing, or none is.

    Args:
        passes: {who sends: (seconds of the work alone, seconds that messages add)}.
        message: seconds of it alone.
    """
    figure, axes = new_figure(WIDE, 1.3 + 0.42 * len(passes))
    work = next(iter(passes.values()))[0]
    for row, (alone, more) in enumerate(passes.values()):
        axes.barh(-row, 1e3 * alone, 0.7, color=WORK["backward"])
        axes.barh(-row, 1e3 * more, 0.7, left=1e3 * alone, color=MESSAGE)
        x, words = (alone + more / 4, f"+ {1e3 * more:.0f}") if more else (alone / 2, f"{1e3 * alone:.0f} ms")
        write(axes, 1e3 * x, -row, words, fontsize=9.5, color=ink(MESSAGE if more else WORK["backward"]))
    for x, words, side in ((work, "all hidden ", "right"), (work + message, " none hidden", "left")):
        axes.axvline(1e3 * x, color="black", linestyle="--", linewidth=1)
        write(axes, 1e3 * x, 0.75, words, ha=side, fontsize=8.5)
    longest = 1e3 * max(alone + more for alone, more in passes.values())
    axes.set(xlim=(0, 1.04 * longest), ylim=(-len(passes) + 0.5, 1.1), title=title)
    axes.set_xlabel("milliseconds of the backward pass, until all gradients are there")
    axes.set_yticks([-row for row in range(len(passes))], list(passes))
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    added = ", ".join(f"{name} {1e3 * more:.0f}" for name, (_, more) in passes.items() if more)
    told = f"{title}. The work takes {1e3 * work:.0f} ms, the message alone {1e3 * message:.0f}. Added:"
    return Plot(figure, f"{told} {added}.".replace("\n", ", "))


@in_style
def times_as_fast(bars: Mapping[str, Mapping[str, float]], ideal: float, title: str) -> Plot:
    """How many times as fast a step is, for a few networks and ways to send: {network: {way: times}}."""
    figure, axes = new_figure(WIDE, 0.8 + 0.75 * len(bars))
    for row, values in enumerate(bars.values()):
        for place, (way, times) in enumerate(values.items()):
            y, colour = -row + 0.18 - 0.36 * place, (MESSAGE, WAITED)[place]
            axes.barh(y, times, 0.34, color=colour)
            write(axes, times - 0.06, y, f"{way}: {times:.1f}", ha="right", fontsize=9, color=ink(colour))
    axes.axvline(ideal, color="black", linestyle="--", linewidth=1)
    write(axes, ideal - 0.05, 0.55, f"{ideal:g} times the GPUs", ha="right", fontsize=8.5)
    axes.set(xlim=(0, 1.1 * ideal), ylim=(-len(bars) + 0.5, 0.75), title=title)
    axes.set_xlabel("times as fast as one host that sends at the end")
    axes.set_yticks([-row for row in range(len(bars))], list(bars))
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    said = "; ".join(
        f"{name}: {', '.join(f'{times:.1f} {way}' for way, times in values.items())}"
        for name, values in bars.items()
    )
    return Plot(figure, f"{title}. Times as fast as one host, computed: {said}; {ideal:g} would be all.")
