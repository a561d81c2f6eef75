"""The budget of a GPU's memory: what lies in it at the highest moment, and what is left of the card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from helpers.course.plots.drawing import BEHIND, bare, ink, new_figure, write, write_beside
from helpers.course.plots.style import CAUTION, LOOK, RIGHT, TEMPORARIES, VISIBLE, WIDE, WRONG, Plot, in_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OUTSIDE, KEPT = "outside the allocator", "reserved and free"
LASTING = ("parameters", "gradients", "master weights", "optimizer states")
LOOKS = {name: LOOK[name] for name in LASTING} | TEMPORARIES
LOOKS |= {OUTSIDE: ("#DDDDDD", ""), KEPT: ("#FFFFFF", "....")}
ROW, ENDS = 0.72, 1.8  # inches: of a bar; of title, axis, legend
NARROW = 0.042  # of the axis: a part of a bar in which no number has room
ROOM = 0.25  # of the axis: what a verdict takes, right of its bar
PHASES = {"building": "in building", "forward": "in the forward pass", "backward": "in the backward pass"}
PHASES |= {"step": "in the optimizer's step"}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """One bar.

    Attributes:
        parts: {what: bytes} of tensors at the highest moment, names as in `LOOKS`.
        phase: in which that is, or its name for a sentence.
        kept: bytes that the allocator has reserved beside them, for tensors to come.
        outside: bytes of the GPU that the allocator never sees.
        how: "fits", or in which way, or that it does not ("no"), as `rehearsal.reserving` says.
        step: seconds of a step, at the fastest and the slowest; None where they are not known.
        sequences: of that step; None where all bars have as many.
        label: "rehearsed", or where it was recorded.
    """

    parts: Mapping[str, float]
    phase: str
    kept: float
    outside: float
    how: str
    label: str
    step: tuple[float, float] | None = None
    sequences: int | None = None

    @property
    def needed(self) -> float:
        """Bytes without which it cannot run: tensors, and what lies outside of the allocator."""
        return sum(self.parts.values()) + self.outside

    def verdict(self, capacity: float) -> str:
        """How it fits a card of so many bytes, in words."""
        left = (capacity - self.needed) / 1e9
        if left < 0:
            return f"{-left:.1f} GB too much"
        if self.how == "no":
            return "but does not fit between what is reserved"
        return f"{left:.1f} GB to spare" + (f", {self.how}" if self.how != "fits" else "")

    def seconds(self) -> str:
        """Of a step, in words; empty where they are not known."""
        if self.step is None:
            return ""
        times = " to ".join(dict.fromkeys(f"{time:.1f}" for time in self.step))
        return f"{times} s a step" + (f" of {self.sequences} sequences" if self.sequences else "")

    def listed(self) -> dict[str, str]:
        """{part: its GB in words}, of those that can be seen."""
        parts = {name: self.parts.get(name, 0) / 1e9 for name in LOOKS} | {OUTSIDE: self.outside / 1e9}
        return {name: f"{size:.1f}" for name, size in parts.items() if size >= 0.05}

    def sentence(self, capacity: float, first: Budget | None = None) -> str:
        """All of it in words; of the parts those that differ from another bar's, if one is given."""
        known = first.listed() if first else {}
        parts = self.listed() | {name: "0" for name in known if name not in self.listed()}
        listed = ", ".join(f"{name} {size}" for name, size in parts.items() if known.get(name) != size)
        listed = f"{listed or 'the same'}; else as the first" if first else listed
        where = PHASES.get(self.phase, self.phase)
        words = [f"{self.needed / 1e9:.1f} GB {where} ({listed})", f"{self.kept / 1e9:.1f} {KEPT}"]
        words.append(self.verdict(capacity))
        words += ["if it fitted"] if self.how == "no" and self.step else []
        words.append(self.seconds())
        return f"{', '.join(filter(None, words))}"


@in_style
def budget_bars(bars: Mapping[str, Budget], title: str, capacity: float, card: str, note: str = "") -> Plot:
    """What the fullest GPU holds at the highest moment, a bar for each way: what lasts at the left, what
    comes and goes right of it, then what lies outside of the allocator and what that keeps.

    Args:
        bars: {name: what it shows}.
        capacity: bytes of the card, drawn as a line; what a bar has beyond it is framed in red.
        card: its name.
        note: where the numbers come from; lines.

    Raises:
        ValueError: there is no bar, or a part has no look.
    """
    if not bars:
        raise ValueError("there is no bar to draw: give at least one")
    if unknown := {name for bar in bars.values() for name in bar.parts} - set(LOOKS):
        raise ValueError(f"no look is known for {', '.join(sorted(unknown))}; there are {', '.join(LOOKS)}")
    figure, axes = new_figure(WIDE, ENDS + ROW * len(bars))
    most = max(bar.needed + bar.kept for bar in bars.values())
    wide = 1.3 * max(most, capacity) / 1e9
    for row, bar in enumerate(bars.values()):
        end = draw_bar(axes, row, bar, most, wide, capacity)
        say(axes, row, bar, end, capacity)
    axes.set(xlim=(0, wide), ylim=(len(bars) - 0.35, -0.4))
    draw_card(axes, capacity / 1e9, card, most > capacity)
    names, common = name_bars(axes, bars)
    figure.suptitle(title, fontsize=11)
    found = dict(zip(*reversed(axes.get_legend_handles_labels())))
    handles = [found[name] for name in LOOKS if name in found]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, title=note, title_fontsize=8)
    first, *others = bars.values()
    sentences = [first.sentence(capacity), *(bar.sentence(capacity, first) for bar in others)]
    told = "; ".join(f"{name}: {sentence}" for name, sentence in zip(names, sentences))
    words = f"{title}. {card}, {capacity / 1e9:.1f} GB. {told}{'; ' if common else ''}{common}. {note}"
    return Plot(figure, " ".join(words.split()))


def draw_bar(axes: Axes, row: int, bar: Budget, most: float, wide: float, capacity: float) -> float:
    """Draw the parts of a bar, each with its GB where it has room; returns where tensors and what is outside
    of the allocator end, in GB.  `most` is the longest bar in bytes, `wide` the axis in GB.  What is
    reserved and free ends at the capacity."""
    left, end, named = 0.0, 0.0, axes.get_legend_handles_labels()[1]
    for name, (colour, hatch) in LOOKS.items():
        size = ({OUTSIDE: bar.outside, KEPT: bar.kept} | dict(bar.parts)).get(name, 0)
        size = min(size, capacity - 1e9 * left) if name == KEPT else size
        if size <= VISIBLE * most:
            continue
        edge = "#888888" if name == KEPT else "white"
        look = {"color": colour, "hatch": hatch, "edgecolor": edge, "linewidth": 0.5}
        axes.barh(row, size / 1e9, 0.5, left, label=None if name in named else name, **look)
        if size / 1e9 > NARROW * wide:
            behind = {"facecolor": colour, "edgecolor": "none", "pad": 1}
            number = {"fontsize": 8, "color": ink(colour), "bbox": behind, "zorder": 6}
            write(axes, left + size / 2e9, row, f"{size / 1e9:.0f}", **number)
        left += size / 1e9
        end = left if name != KEPT else end
    return end


def draw_card(axes: Axes, capacity: float, card: str, is_passed: bool) -> None:
    """A line at so many GB; a red ground beyond it where a bar passes it."""
    if is_passed:
        axes.axvspan(capacity, axes.get_xlim()[1], color=WRONG, alpha=0.08, linewidth=0, zorder=0)
    axes.axvline(capacity, color="black", linestyle="--", linewidth=1.2, zorder=5)
    above = {"xycoords": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 9}
    write_beside(axes, capacity, 1, f"{card}: {capacity:.1f} GB", 0, 1, **above)


def say(axes: Axes, row: int, bar: Budget, end: float, capacity: float) -> None:
    """How a bar fits, right of it, in the verdict's colour, with a frame round what is too much; under it the
    seconds of a step."""
    card, colour = capacity / 1e9, {"fits": RIGHT, "no": WRONG}.get(bar.how, CAUTION)
    if end > card:
        frame = {"fill": False, "edgecolor": WRONG, "linewidth": 2.5, "zorder": 4}
        axes.barh(row, end - card, 0.56, card, **frame)
    right, wide = max(end, min(end + bar.kept / 1e9, card)), axes.get_xlim()[1]
    right = card if right < card < right + ROOM * wide else right
    said = bar.how if colour == CAUTION and end <= card else bar.verdict(capacity)
    words = "\n".join([f"{bar.needed / 1e9:.1f} GB", *said.replace(" with ", " with\n").split(", ")])
    box = {**BEHIND, "pad": 1.5}
    write_beside(axes, right, row, words, 4, 0, ha="left", va="center", fontsize=9, color=colour, bbox=box)
    look = {"ha": "left", "va": "top", "fontsize": 8.5, "bbox": {**BEHIND, "pad": 0.5}, "zorder": 6}
    if times := bar.seconds():
        write_beside(axes, 0, row + 0.27, times, 0, -1, **look)


def name_bars(axes: Axes, bars: Mapping[str, Budget]) -> tuple[list[str], str]:
    """Write the bars' names at the left, with their labels; a label that all share stands below, alone.
    Returns the names so written, and that label or nothing."""
    labels = {bar.label for bar in bars.values()}
    common = labels.pop() if len(labels) == 1 else ""
    names = [name if common else labelled(name, bar.label) for name, bar in bars.items()]
    axes.set_yticks(range(len(bars)), names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"GB on the fullest GPU{', ' if common else ''}{common}")
    bare(axes)
    return names, common


def labelled(name: str, label: str) -> str:
    """A bar's name with its label, which says it alone where it begins with the name."""
    return fill(label, 34) if label.startswith(name) else f"{name}\n({fill(label, 34)})"
