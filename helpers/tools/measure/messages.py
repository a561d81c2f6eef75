"""Every message of this rank, as torch's dispatcher sees it: however the program spells the call.

torch.distributed's functions under any name, a process group's own methods, functional collectives, DTensor,
FSDP2, DeepSpeed's communication and DistributedDataParallel's reducer, which is C++: all call the same
operators, in whichever thread.  Not seen are a back end's own methods (`ProcessGroupGloo.allreduce`),
DeepSpeed's kernel for shared memory, which `launch` switches off, and NCCL's symmetric memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch.distributed as dist

from .internals import (
    MESSAGES,
    WAITS,
    Future,
    bytes_of,
    caller,
    replaced,
    stand_before,
    storage_key,
    storages_among,
)
from .operations import Message

TORCH = "torch.distributed.distributed_c10d"  # the module of torch's own functions


# Called when a message begins, with torch's operator and {argument: value}; may return a function that is
# called with its request once it is under way, or with None where torch gave none.
Listener = Callable[[Message, str, dict], Callable[[dist.Work | None], None] | None]

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
    # torch's `send` calls `isend`, and both the same operator
    asynchronous = f"i{operation}"
    if caller(2) == (TORCH, asynchronous) and caller(3) != (TORCH, operation):
        operation = asynchronous
    size = bytes_of(arguments[argument]) if argument else 0
    message = Message(operation, size, _ranks(operator, arguments))
    afterwards = [listener(message, operator, arguments) for listener in list(_listeners)]
    with unheard():
        result = call()
    request = result[-1] if isinstance(result, tuple) else result
    request = None if request is None else dist.Work.unbox(request)
    for after in filter(None, afterwards):
        after(request)
    if _functional is not None:
        _functional.update(dict.fromkeys(_keys(arguments), request))
    return result


def _keys(arguments):
    return [storage_key(storage) for storage in storages_among(*arguments.values())]


def _ranks(operator, arguments):
    ranks = dist.get_process_group_ranks(dist.ProcessGroup.unbox(arguments["process_group"]))
    if operator == "recv_any_source_":
        return (dist.get_rank(),)
    if operator in ("send", "recv_"):
        other = arguments["dst" if operator == "send" else "src"]
        return tuple(sorted({dist.get_rank(), *ranks[other : other + 1]}))  # torch names one that is none
    return tuple(ranks)


def listen_to_requests(
    listener: Callable[[dist.Work | None, Callable[[], object], bool], object],
) -> Callable[[], None]:
    """Call `listener(request, wait, inside)` in the place of the method `wait` of requests and of their
    futures; it must return what `wait()` does.

    `inside` is True where a function of torch waits before it returns, and not the program.  A functional
    collective is waited for by what it returned; where that is not known, the request is None.  Returns a
    function that ends it.
    """
    global _functional

    def method(plain):
        def wait(request, *arguments, **options):
            module, name = caller(1)
            inside = module == TORCH and name != "wait"  # as a coalescing manager's is called
            return listener(request, partial(plain, request, *arguments, **options), inside)

        return wait

    def wait_tensor(operator, arguments, call):
        (key,) = _keys(arguments)
        return listener(_functional.get(key), call, False)

    def forget():
        global _functional
        _functional = None

    _functional, ends = {}, ExitStack()
    ends.callback(forget)
    for owner in (dist.Work, Future):
        ends.callback(replaced(owner, "wait", method(owner.wait)))
    ends.callback(stand_before(*WAITS, wait_tensor))
    return ends.close
