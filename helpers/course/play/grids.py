"""Numbers over all combinations of some choices, as small as they can be stored."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy

DIGITS = string.digits + string.ascii_letters + "+-"  # of base 64; numbers.js has them, too


def packed(numbers: Sequence[int]) -> dict[str, int | str]:
    """Numbers as one text, each as many digits wide as the largest needs; a ValueError where one is
    negative."""
    if min(numbers) < 0:
        raise ValueError(f"numbers of a grid are not negative, and one is {min(numbers)}")
    wide = 1
    while max(numbers) >= len(DIGITS) ** wide:
        wide += 1
    places = [len(DIGITS) ** place for place in reversed(range(wide))]
    digits = [DIGITS[number // place % len(DIGITS)] for number in numbers for place in places]
    return {"wide": wide, "values": "".join(digits)}


def unpacked(values: str, wide: int, index: int) -> int:
    """One of the numbers in a text of `packed`."""
    found = 0
    for digit in values[index * wide : (index + 1) * wide]:
        found = found * len(DIGITS) + DIGITS.index(digit)
    return found


@dataclass(frozen=True)
class Choice:
    """Something that the reader chooses: its label, the options, and the one at the start."""

    label: str
    options: Sequence
    start: object
    told: Callable[[object], str] = str  # the words of an option

    def __post_init__(self):
        if self.start not in self.options:
            listed = ", ".join(map(str, self.options))
            raise ValueError(f"{self.label}: there is no {self.start!r}, only {listed}")

    @property
    def place(self) -> int:
        """Of the option at the start."""
        return list(self.options).index(self.start)

    @property
    def words(self) -> list[str]:
        """Of each option."""
        return [self.told(option) for option in self.options]


class Grid:
    """Columns of whole numbers over all combinations of choices, each stored without the choices that do not
    change it; `choices.js` looks them up as this does.

    Args:
        choices: {name: what can be chosen}; a script shows those with several options.
        cell: of one option of each, by name; returns {column: whole number}, the same columns for all.
    """

    def __init__(self, choices: Mapping[str, Choice], cell: Callable[..., Mapping[str, int]]) -> None:
        self.choices, self.columns = choices, {}
        options = [choice.options for choice in choices.values()]
        rows = [cell(**dict(zip(choices, combination))) for combination in itertools.product(*options)]
        for column in rows[0]:
            values = numpy.array([row[column] for row in rows]).reshape([len(each) for each in options])
            self.columns[column] = self._small(values)

    def _small(self, values):
        by = []
        for place, name in enumerate(self.choices):
            first = values.take([0], place)
            if (values == first).all():
                values = first
            else:
                by.append(name)
        return {"by": by, **packed([int(value) for value in values.flat])}

    @property
    def start(self) -> dict[str, int]:
        """{choice: place of its option at the start}."""
        return {name: choice.place for name, choice in self.choices.items()}

    def __call__(self, column: str, at: Mapping[str, int]) -> int:
        """A number, `at` the place of an option on each axis."""
        found, index = self.columns[column], 0
        for name in found["by"]:
            index = index * len(self.choices[name].options) + at[name]
        return unpacked(found["values"], found["wide"], index)

    def chosen(self, at: Mapping[str, int]) -> str:
        """The choices in words; those that no script shows are left to the title."""
        shown = [(choice, at[name]) for name, choice in self.choices.items() if choice.label]
        return ", ".join(f"{choice.label} {choice.words[place]}" for choice, place in shown)

    @property
    def data(self) -> dict:
        """For `choices.js`."""
        told = {
            name: {"label": choice.label, "options": choice.words, "at": choice.place}
            for name, choice in self.choices.items()
        }
        return {"choices": told, "columns": self.columns}


def chosen_from(
    known: Mapping[str, Choice], names: Sequence[str], start: Mapping[str, object]
) -> dict[str, Choice]:
    """Choices with other starts; those that `names` leaves out, where it names any, have no other option.  A
    ValueError where a name or an option is not known."""
    if unknown := (set(names) | set(start)) - set(known):
        raise ValueError(f"there is no {', '.join(sorted(unknown))}: choose among {', '.join(known)}")
    found = {}
    for name, choice in known.items():
        choice = replace(choice, start=start.get(name, choice.start))
        fixed = names and name not in names
        found[name] = replace(choice, options=[choice.start]) if fixed else choice
    return found
