"""A cursor over what a rank held: at each moment how much of what, by category and by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from helpers.course.play.grids import packed, unpacked
from helpers.course.play.history_picture import ROWS, draw
from helpers.course.play.played import Played
from helpers.course.plots.memory import phases
from helpers.course.plots.style import unit

if TYPE_CHECKING:
    from helpers.tools.measure.held import History, Storage
    from helpers.tools.measure.ledger import Ledger

COLUMNS = 90  # of the picture: two moments of each are kept, and the most that was ever held
WORDS = "{title}. Moment {moment} of {count}, {phase}: {total} {unit} ({parts}){names}."


def held_by_name(
    ledger: Ledger, name_of: Callable[[Storage], str | None], start: str | None = None, end: str | None = None
) -> dict[str, list[int]]:
    """{name: bytes at each moment of `ledger.history(start, end)`}, of the storages that have a name."""
    count, marks = len(ledger.history(start, end).total), ledger.history().marks
    first, changes = {name: at for at, name in marks}.get(start, 0), {}
    for storage in ledger.storages:
        born, died = storage.born - first, (storage.died or first + count) - first
        if (name := name_of(storage)) is None or born >= count or died <= 0:
            continue
        line = changes.setdefault(name, [0] * (count + 1))
        line[max(born, 0)] += storage.bytes
        line[min(died, count)] -= storage.bytes
    return {name: list(accumulate(line[:-1])) for name, line in changes.items()}


def kept(places: Sequence[float], total: Sequence[int]) -> list[int]:
    """Moments that stay: in each column of the picture the one with most, and the last; the first one."""
    columns: dict[int, list[int]] = {}
    for moment, place in enumerate(places):
        columns.setdefault(int(COLUMNS * place / places[-1]), []).append(moment)
    found = {0, len(total) - 1}
    for moments in columns.values():
        found |= {max(moments, key=total.__getitem__), moments[-1]}
    return sorted(found)


class Held:
    """A history as the figure has it: some of its moments, in a unit that keeps numbers short.

    Args:
        named: {name: bytes at each moment}, in the history's length.
    """

    def __init__(self, history: History, title: str, named: Mapping[str, Sequence[int]]) -> None:
        total, self.title = history.total, title
        places, self.phases = phases(history)
        for name, values in named.items():
            if len(values) != len(total):
                words = f"of {name} there are {len(values)} moments, and the history has {len(total)}"
                raise ValueError(f"{words}: take both between the same marks")
        self.moments, self.count = kept(places, total), len(total)
        self.places = [places[moment] for moment in self.moments]
        divisor, self.unit = unit(max(total))
        self.digits = 0 if self.unit == "bytes" else 1 if max(total) >= 100 * divisor else 2
        self.scale = divisor / 10**self.digits
        totals = {name: values for name, values in history.totals.items() if any(values)}
        self.categories, self.names = list(totals), list(named)
        self.columns = {name: self.column(values) for name, values in {**totals, **named}.items()}
        self.columns["total"] = self.column(total)
        self.peak = max(range(len(self.moments)), key=lambda turn: total[self.moments[turn]])

    def column(self, values: Sequence[int]) -> dict:
        """Whole numbers of the unit's last digit."""
        return packed([round(values[moment] / self.scale) for moment in self.moments])

    def __call__(self, name: str, turn: int) -> int:
        return unpacked(self.columns[name]["values"], self.columns[name]["wide"], turn)

    def told(self, number: int) -> str:
        """In the unit."""
        return f"{number / 10**self.digits:.{self.digits}f}"

    def phase(self, turn: int) -> str:
        """Its name."""
        return self.phases[min(int(self.places[turn]), len(self.phases) - 1)] or "in the step"

    def largest(self, turn: int) -> list[tuple[str, int]]:
        """The names that hold most, at most `ROWS` of them, those first that come first among equals."""
        sizes = [(name, size) for name in self.names if (size := self(name, turn))]
        return sorted(sizes, key=lambda pair: -pair[1])[:ROWS]

    def sentence(self, turn: int) -> str:
        """What timeline.js says, too."""
        parts = [f"{name} {self.told(size)}" for name in self.categories if (size := self(name, turn))]
        names = ", ".join(f"{name} {self.told(size)}" for name, size in self.largest(turn))
        found = {"title": self.title, "moment": self.moments[turn], "count": self.count - 1}
        found |= {"phase": self.phase(turn), "unit": self.unit, "total": self.told(self("total", turn))}
        named = f"; by name: {names}" if names else ""
        return WORDS.format(**found, parts=", ".join(parts) or "nothing", names=named)


def timeline(history: History, title: str, named: Mapping[str, Sequence[int]] | None = None) -> Played:
    """A history with a cursor, which begins where most is held: what is resident then.

    Args:
        history: of a `Ledger`; phases are as wide as in `plots.memory_over_time`.
        named: {name: bytes at each moment}, such as `held_by_name` gives, for instance each parameter that
            ZeRO-3 gathers; the largest at the cursor are listed.

    Raises:
        ValueError: the history has a single event, or the named ones have another length.
    """
    held = Held(history, title, named or {})
    data = {
        **{"title": title, "words": WORDS, "unit": held.unit, "digits": held.digits, "columns": held.columns},
        **{"categories": held.categories, "names": held.names, "rows": ROWS, "count": held.count - 1},
        **{"moments": held.moments, "phases": [held.phase(turn) for turn in range(len(held.moments))]},
        **{"last": len(held.moments) - 1, "turn": held.peak, "each": 120, "of": "moment"},
    }
    picture, data["places"] = draw(held)
    return Played("numbers stepper timeline", picture, held.sentence(held.peak), data)
