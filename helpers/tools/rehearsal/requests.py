"""What torch's allocator for GPUs is asked for while a rank is rehearsed, in the order in which the host
asks: requests as `playing` takes them.

Births and deaths of tensors come from the ledger.  Beside them cuBLAS asks for workspaces: 32 MiB on a GPU of
the Hopper generation at a thread's first product (autograd has a thread of its own), and 1 MiB at its first
product with a bias; that is what torch 2.11 did in recorded runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from ..measure.internals import in_backward, storage_key, storages_among, tensors_among
from .gpu import GPU
from .naming import Made
from .pinning import pins
from .playing import Request
from .working import work

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from ..measure.ledger import Ledger, Storage

CUBLAS, CUBLAS_LT = 32 * 2**20, 2**20
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear", "addmv", "mv"}


class Stream:
    """A queue of the GPU's; every one has a pool of blocks of its own."""

    made = 0

    def __init__(self, *arguments: object, **options: object) -> None:
        self.number, Stream.made = Stream.made, Stream.made + 1

    def synchronize(self) -> None:
        recorder.wait()

    def __getattr__(self, name):
        return lambda *arguments, **options: True  # nothing has to wait for a GPU that does nothing


class Recorder:
    """Notes requests; `recorder` is the one of this process.

    Attributes:
        requests: those so far.
        made: by a storage's birth, how it came to be.
        held: bytes of all storages that are alive.
        default, stream: the GPU's default stream, and the one on which the host works now.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.default = self.stream = Stream()
        self.storages: dict[int, Storage] = {}  # the last of each `storage_key`
        self.held = 0
        self.workspaces: set[tuple] = set()
        self.newborn: dict[int, int] = {}  # of the operation that runs: {a storage's key: its birth}
        self.made: dict[int, Made] = {}
        self.now = "building"  # the phase

    def birth(self, key: int, storage: Storage) -> None:
        self.storages[key] = storage
        self.held += storage.bytes
        self.newborn[key] = storage.born
        self.requests.append(("birth", storage.born, storage.bytes, self.stream.number))

    def death(self, storage: Storage) -> None:
        self.held -= storage.bytes
        self.requests.append(("death", storage.born))

    def wait(self, device: object = None) -> None:
        self.requests.append(("wait",))

    def empty_cache(self) -> None:
        self.requests.append(("empty",))

    def phase(self, name: str) -> None:
        self.now = name
        self.requests.append(("phase", name))

    def use(self, tensor: torch.Tensor, stream: Stream) -> None:
        """`tensor.record_stream(stream)`."""
        storage = self.storages.get(storage_key(tensor.untyped_storage()))
        if storage is not None and storage.died is None:
            self.requests.append(("use", storage.born, stream.number))

    def product(self, operation: str, results: object) -> None:
        """An operation has run: note what it made; cuBLAS may have asked for a workspace."""
        name = operation.partition(".")[0]
        if self.newborn:
            self.note(name, results)
        if name in PRODUCTS and any(result.device.type == GPU for result in tensors_among(results)):
            self.workspace("cuBLAS", CUBLAS)
            if name == "addmm":
                self.workspace("cuBLASLt", CUBLAS_LT)

    def note(self, operation: str, results: object) -> None:
        """How the storages came to be that an operation has made."""
        for tensor in tensors_among(results):
            for storage in storages_among(tensor):
                if (born := self.newborn.pop(storage_key(storage), None)) is not None:
                    self.made[born] = Made.of(operation, tensor, self.now)
        self.newborn.clear()

    def workspace(self, library: str, size: int) -> None:
        place = library, in_backward(), self.stream.number
        if place not in self.workspaces:
            self.workspaces.add(place)
            self.requests.append(("birth", place, size, self.stream.number))

    def clear_workspaces(self) -> None:
        self.requests += [("death", place) for place in self.workspaces]
        self.workspaces.clear()

    @contextlib.contextmanager
    def working_on(self, stream: Stream) -> Iterator[None]:
        """`with torch.cuda.stream(stream)`."""
        before, self.stream = self.stream, stream or self.stream
        try:
            yield
        finally:
            self.stream = before


recorder = Recorder()


# --- what is put in the place of functions of the ledger, torch and the accelerator; see `patches`


def operated(function: OpOverload, args: tuple, kwargs: dict, results: object) -> None:
    """An operation has run."""
    recorder.product(function.__name__, results)
    work.operator(function, args, kwargs, results)


def register_storage(
    plain: Callable[..., Storage | None], self: Ledger, storage: torch.UntypedStorage
) -> Storage | None:
    """`Ledger._register_storage`"""
    made, key = plain(self, storage), storage_key(storage)
    if self.device == GPU and made is not None and recorder.storages.get(key) is not made:
        recorder.birth(key, made)
    if self.device == "cpu" and made is not None:
        pins.note(made)
    return made


def end(plain: Callable[..., None], self: Ledger, storage: Storage) -> None:
    """`Ledger._end`"""
    if self.device == GPU and storage.died is None:
        recorder.death(storage)
    plain(self, storage)


def mark(plain: Callable[..., None], self: Ledger, name: str) -> None:
    """`Ledger.mark`: phases of the program."""
    plain(self, name)
    if self.device == GPU:
        recorder.phase(name)


def settle(plain: Callable[..., bool], self: Ledger) -> bool:
    """`Ledger._settle`"""
    recorder.wait()
    return plain(self)


def use(tensor: torch.Tensor, stream: Stream) -> None:
    """`Tensor.record_stream`"""
    recorder.use(tensor, stream)


def answers(capacity: float) -> dict[str, object]:
    """{name: method} of the accelerator of so many bytes: what it says of streams and of its allocator."""
    return {
        "available_memory": lambda self, index=None: capacity - recorder.held,
        "current_stream": lambda self, index=None: recorder.stream,
        "default_stream": lambda self, index=None: recorder.default,
        "stream": lambda self, stream: recorder.working_on(stream),
        "synchronize": lambda self, index=None: recorder.wait(),
        "empty_cache": lambda self: recorder.empty_cache(),
        "Stream": property(lambda self: Stream),
    }
