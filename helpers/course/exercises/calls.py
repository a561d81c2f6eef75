"""A learner's collectives, counted in torch's dispatcher.  There it does not matter what a function calls
them: `comm.all_reduce`, `dist.all_reduce`, or a name imported from either module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

NAMES = {  # {the dispatcher's name: DeepSpeed's}
    "allreduce_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
}
POINT_TO_POINT = ("send", "recv_", "recv_any_source_")


@dataclass(frozen=True)
class Call:
    """A collective that a function has begun.

    Attributes:
        name: DeepSpeed's name of it.
        arguments: {name: value} of the dispatcher's operator.
    """

    name: str
    arguments: dict[str, object]

    @property
    def message(self) -> Tensor | list:
        """What this rank hands in: the second argument where the first is only written to."""
        first, second, *_ = self.arguments.items()
        return second[1] if second[0].startswith("input") else first[1]

    @property
    def elements(self) -> int:
        """Elements of the message."""
        return sum(tensor.numel() for tensor in tree_leaves(self.message))

    def __str__(self):
        root = self.arguments.get("root_rank")
        return f"{self.name} of {self.elements} elements" + ("" if root is None else f" to rank {root}")


class Calls(TorchDispatchMode):
    """Notes the collectives that begin while it is entered.

    Args:
        look: is called with each `Call` before it begins; may raise an error.
        carry_out: False where collectives are noted only, and nothing is sent; messages between two ranks
            are sent nevertheless.

    Attributes:
        made: list of `Call`, in order.
        waited: {id: request} of those that somebody waited for; a blocking call waits itself.
    """

    def __init__(self, look: Callable[[Call], None] | None = None, carry_out: bool = True):
        super().__init__()
        self.look, self.carry_out, self.made, self.waited, self.real = look, carry_out, [], {}, []
        self.followed, self.futures = (
            {},
            {},
        )  # {id: request} of those with a callback; {id: (future, request)}

    @property
    def all_waited_for(self) -> bool:
        """Whether every call was waited for, or has a callback that waits."""
        return len(self.waited | self.followed) == len(self.made)

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        name = operator._schema.name.removeprefix("c10d::")
        if operator.namespace != "c10d" or name in POINT_TO_POINT:
            return operator(*arguments, **(options or {}))
        names = (argument.name for argument in operator._schema.arguments)
        call = Call(NAMES.get(name, name.strip("_")), dict(zip(names, arguments)))
        if self.look:
            self.look(call)
        self.made.append(call)
        if self.carry_out:
            return operator(*arguments, **(options or {}))
        from torch._C._distributed_c10d import FakeWork

        request = FakeWork().boxed()
        return request if len(operator._schema.returns) == 1 else (arguments[0], request)

    def __enter__(self):
        from torch._C import Future
        from torch._C._distributed_c10d import FakeWork, Work

        methods = (
            (Work, "wait"),
            (FakeWork, "wait"),
            (Work, "get_future"),
            (Future, "wait"),
            (Future, "then"),
        )
        for owner, name in methods:
            self.real.append((owner, name, getattr(owner, name)))
            setattr(owner, name, self.noting(name, getattr(owner, name)))
        return super().__enter__()

    def noting(self, name: str, real: Callable) -> Callable:
        """A method of a request or its future that notes who is waited for.  Both are kept, so that no other
        gets their id."""

        def noted(answer, *arguments, **options):
            result = real(answer, *arguments, **options)
            _, request = self.futures.get(id(answer), (None, answer))
            if name == "wait":
                self.waited[id(request)] = request
            else:
                self.futures[id(result)] = result, request
            if name == "then":
                self.followed[id(request)] = request
            return result

        return noted

    def __exit__(self, *problem):
        while self.real:
            setattr(*self.real.pop())
        return super().__exit__(*problem)
