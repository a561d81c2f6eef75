"""What a check sees of an answer in one rank."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.comparing import article
from helpers.course.exercises.meeting import meet
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor
    from helpers.course.exercises.calls import Call


class See:
    """Called with a name and a value, it notes the value: a tensor, number, list, string or bool.  The values
    of the learner's function are compared with those of the course's.

    Attributes:
        seed: of this check, the same on all ranks; torch's generator is seeded with it.
        rank, ranks: this rank's number, and how many there are.
        patience: seconds that a rank waits for the others.
        values: {name: value}, in the order in which they were noted.
        sent: bytes that this rank had to send in the last `call`, at least.
    """

    def __init__(self, seed: int, patience: float, hints: Mapping[str, str]) -> None:
        self.seed, self.patience, self.hints = seed, patience, hints
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.values: dict[str, object] = {}
        self.sent, self.when = 0, ""

    def __call__(self, name: str, value: object) -> None:
        self.values[f"{name}{self.when}"] = value

    def call(
        self,
        answer: Callable,
        *arguments: object,
        returns: type | tuple[type, ...] = object,
        due: str = "",
        look: Callable[[Call], None] | None = None,
    ) -> object:
        """What the answer returns.

        Args:
            returns: of which class that must be.
            due: what a TypeError says where it is of another: "return one tensor".
            look: is called with each collective before it begins, and may raise an error.
        """
        calls = Calls(look) if look else contextlib.nullcontext()
        with Traffic() as traffic, calls, helped(self.hints):
            value = answer(*arguments)
        self.sent = sum(traffic.ideal.values())
        return returned(value, returns, due)

    def each(self, cases: Mapping[str, object]) -> Iterator:
        """The values of several cases, one after the other; what is noted meanwhile has the case's words
        behind its name."""
        outside = self.when
        for words, case in cases.items():
            self.when = f"{outside}{words}"
            yield case
        self.when = outside

    def dtypes(self, *dtypes: torch.dtype) -> Iterator[torch.dtype]:
        return self.each({f", {str(dtype).removeprefix('torch.')}": dtype for dtype in dtypes})

    def steps(self, count: int) -> Iterator[int]:
        """1, 2, ..."""
        return self.each({f", step {number}": number for number in range(1, count + 1)})

    def random(self) -> random.Random:
        """Random numbers that differ from rank to rank, and are the same for the same seed."""
        return random_of_rank(self.seed)

    def randn(self, *shape: int) -> Tensor:
        """The same, as a tensor."""
        return randn_of_rank(self.seed, *shape)

    def meet(self) -> None:
        """Wait until all ranks have come here."""
        meet(self.patience)


def seed_of_rank(seed: int) -> int:
    """A seed that differs from rank to rank."""
    return 1000 * (seed % 10**6) + dist.get_rank()


def random_of_rank(seed: int) -> random.Random:
    """Random numbers that differ from rank to rank, and are the same for the same seed."""
    return random.Random(seed_of_rank(seed))


def randn_of_rank(seed: int, *shape: int) -> Tensor:
    """The same, as a tensor."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed_of_rank(seed)))


@contextlib.contextmanager
def helped(hints: Mapping[str, str]) -> Iterator[None]:
    """Adds words to an error whose own say little: {a part of the error's message: what to think about}."""
    try:
        yield
    except Exception as error:
        if words := next((words for part, words in hints.items() if part in str(error)), ""):
            error.args = (f"{str(error).rstrip('.')}; {words}",)
        raise


def returned(answer: object, kind: type | tuple[type, ...], due: str) -> object:
    """What a learner's function has returned; a TypeError says what is due where it is of another kind."""
    if not isinstance(answer, kind):
        raise TypeError(f"{due}, not {'nothing' if answer is None else article(type(answer).__name__)}")
    return answer
