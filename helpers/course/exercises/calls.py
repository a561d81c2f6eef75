"""A learner's collectives, whatever a function calls them: `comm.all_reduce`, `dist.all_reduce`, or a name
imported from either module."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import distributed as dist
from helpers.tools.measure import internals
from helpers.tools.measure.messages import listen, listen_to_requests

if TYPE_CHECKING:
    from collections.abc import Callable

POINT_TO_POINT = ("send", "recv_", "recv_any_source_")


@dataclass(frozen=True)
class Call:
    """A collective that a function has begun: DeepSpeed's name of it, and the arguments of torch's operator,
    {name: value}."""

    name: str
    arguments: dict[str, object]

    @property
    def elements(self) -> int:
        """Elements that this rank hands in: in the second argument where the first is only written to."""
        first, second, *_ = self.arguments
        message = self.arguments[second if second.startswith("input") else first]
        return sum(tensor.numel() for tensor in internals.tensors_among(message))

    def __str__(self):
        root = self.arguments.get("root_rank")
        return f"{self.name} of {self.elements} elements" + ("" if root is None else f" to rank {root}")


class Calls:
    """Notes the collectives that begin while it is entered.

    Args:
        look: is called with each `Call` before it begins; may raise an error.
        carry_out: False where collectives are noted only, and nothing is sent but what passes between two
            ranks; traffic cannot be counted then.

    Attributes:
        made: list of `Call`, in order.
        waited: {id: request} of those that somebody waited for; a blocking call waits itself.
    """

    def __init__(self, look: Callable[[Call], None] | None = None, carry_out: bool = True):
        self.look, self.carry_out, self.made, self.waited = look, carry_out, [], {}
        self.followed = {}  # {id: request} of those with a callback
        self.futures = {}  # {id: (future, request)}; both are kept, so that no other gets their id

    @property
    def all_waited_for(self) -> bool:
        """Whether every call was waited for, or has a callback that waits."""
        return len(self.waited | self.followed) == len(self.made)

    def __enter__(self):
        collectives = [name for name in internals.MESSAGES if name not in POINT_TO_POINT]
        ends = self._ends = ExitStack()
        if self.carry_out:
            ends.callback(listen(self._begins))
        else:
            ends.callback(internals.stand_before("c10d", collectives, self._instead))
        ends.callback(listen_to_requests(self._waits))
        for owner, name in ((dist.Work, "get_future"), (internals.Future, "then")):
            ends.callback(internals.replaced(owner, name, self._noting(getattr(owner, name))))
        return self

    def __exit__(self, *problem):
        self._ends.close()

    def _begins(self, message, operator, arguments):
        if operator not in POINT_TO_POINT:
            self._note(operator, arguments)

    def _instead(self, operator, arguments, call):
        self._note(operator, arguments)
        return internals.finished(operator, arguments)

    def _note(self, operator, arguments):
        call = Call(internals.MESSAGES[operator][0], arguments)
        if self.look:
            self.look(call)
        self.made.append(call)

    def _waits(self, answer, wait, inside):
        _, request = self.futures.get(id(answer), (None, answer))
        self.waited[id(request)] = request
        return wait()

    def _noting(self, method):
        """A method that gives a future, of a request or of another future."""

        def noted(answer, *arguments, **options):
            future = method(answer, *arguments, **options)
            _, request = self.futures.get(id(answer), (None, answer))
            self.futures[id(future)] = future, request
            if method.__name__ == "then":
                self.followed[id(request)] = request
            return future

        return noted
