"""Every message of this rank, as torch's dispatcher sees it: however the program spells the call.

torch.distributed's functions under any name, a process group's own methods, functional collectives, DTensor,
FSDP2, DeepSpeed's communication and the reducer of DistributedDataParallel, which is C++: all call the same
operators, in whichever thread.  What passes by them is not seen: a back end's own methods
(`ProcessGroupGloo.allreduce`), DeepSpeed's kernel for shared memory, which `launch` switches off, and NCCL's
symmetric memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from helpers.tools.measure.internals import (
    MESSAGES,
    WAITS,
    Future,
    bytes_of,
    caller,
    stand_before,
    storage_key,
    storages_among,
)

TORCH = "torch.distributed.distributed_c10d"  # the module of torch's own functions


@dataclass(frozen=True)
class Call:
    """A message that begins.

    Attributes:
        operation: DeepSpeed's name of it.
        bytes: of the tensors that this rank hands in; of a scatter or a receive, of those that it is given.
        group: the ranks that take part, as a tuple; of what passes between two ranks, these two.
    """

    operation: str
    bytes: int
    group: tuple[int, ...]


# Called when a message begins; may return a function that is called with its request once it is under way, or
# with None where torch gave none.
Listener = Callable[[Call], Callable[[dist.Work | None], None] | None]

_listeners: list[Listener] = []
_ends: list[Callable[[], None]] = []
_functional: dict[int, dist.Work] | None = None  # {storage's key: request} while waiting is listened to
_this = threading.local()  # thread: whether it is inside a message, or unheard


def listen(listener: Listener) -> Callable[[], None]:
    """Call a function with every message that begins; returns a function that ends it."""
    if not _listeners:
        _ends.append(stand_before("c10d", MESSAGES, _around))
    _listeners.append(listener)

    def end():
        _listeners.remove(listener)
        if not _listeners:
            _ends.pop()()

    return end


@contextmanager
def unheard() -> Iterator[None]:
    """What this thread sends inside the block is no message of the program."""
    before, _this.busy = getattr(_this, "busy", False), True
    try:
        yield
    finally:
        _this.busy = before


def _around(operator, arguments, call):
    if getattr(_this, "busy", False):  # a back end in Python sends by operators of its own
        return call()
    operation, argument = MESSAGES[operator]
    if operator in ("send", "recv_", "recv_any_source_"):
        operation = _as_called(operation)
    size = bytes_of(arguments[argument]) if argument else 0
    message = Call(operation, size, _ranks(operator, arguments))
    afterwards = [listener(message) for listener in list(_listeners)]
    with unheard():
        result = call()
    request = result[-1] if isinstance(result, tuple) else result
    request = None if request is None else dist.Work.unbox(request)
    for after in afterwards:
        if after:
            after(request)
    if _functional is not None:
        _functional.update(dict.fromkeys(_keys(arguments.values()), request))
    return result


def _keys(values):
    return [storage_key(storage) for storage in storages_among(*values)]


def _as_called(operation):
    """torch's `send` calls `isend`, and both the same operator."""
    asynchronous = f"i{operation}"
    if caller(3) == (TORCH, asynchronous) and caller(4) != (TORCH, operation):
        return asynchronous
    return operation


def _ranks(operator, arguments):
    ranks = dist.get_process_group_ranks(dist.ProcessGroup.unbox(arguments["process_group"]))
    if operator == "recv_any_source_":
        return (dist.get_rank(),)
    if operator in ("send", "recv_"):
        other = arguments["dst" if operator == "send" else "src"]
        return tuple(sorted({dist.get_rank(), ranks[other]}))
    return tuple(ranks)


def listen_to_requests(
    listener: Callable[[dist.Work | None, Callable[[], object], bool], object],
    methods: tuple[str, ...] = ("wait",),
) -> Callable[[], None]:
    """Call `listener(request, call, inside)` in the place of the methods of requests and of their futures; it
    must return what `call()` does.

    `inside` is True where a function of torch waits before it returns, and not the program.  A functional
    collective is waited for by what it returned; where that is not known, the request is None.  Returns a
    function that ends it.
    """
    global _functional

    before = [
        (owner, name, getattr(owner, name))
        for owner in (dist.Work, Future)
        for name in methods
        if hasattr(owner, name)
    ]

    def method(plain):
        def asked(request, *arguments, **options):
            module, name = caller(1)
            inside = module == TORCH and name != "wait"  # as a coalescing manager's is called
            return listener(request, partial(plain, request, *arguments, **options), inside)

        return asked

    for owner, name, plain in before:
        setattr(owner, name, method(plain))

    def wait_tensor(operator, arguments, call):
        (key,) = _keys(arguments.values())
        return listener(_functional.get(key), call, False)

    _functional, end_waits = {}, stand_before(*WAITS, wait_tensor)

    def end():
        global _functional
        end_waits()
        _functional = None
        for place in before:
            setattr(*place)

    return end
