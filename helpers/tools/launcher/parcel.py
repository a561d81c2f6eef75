"""A pickle whose large buffers lie beside it, in a file without a name: written once, then mapped or read,
never pickled themselves.

Kernel and ranks of one job share one such file: the work lies at its beginning, and a large report of rank r
from `region(r)` on.  The file is sparse, so that the distance between regions costs nothing.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import struct
import sys
import tempfile
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import TYPE_CHECKING

import cloudpickle

if TYPE_CHECKING:
    from types import NotImplementedType
    from typing import Any

    import torch

PROTOCOL = 5  # of pickle: the first with buffers beside the pickle
LARGE = 1 << 20  # bytes from which a buffer lies beside the pickle, at a multiple of ALIGNMENT
ALIGNMENT = 64  # bytes, as torch aligns the memory of a CPU tensor
REGION = 1 << 36  # bytes of the file for the work, and for each rank's report


class Pickler(cloudpickle.Pickler):
    """Pickles functions and classes of cells by value, and the memory of CPU tensors as buffers, each storage
    once however many tensors view it.  All else about a tensor, and other memory, is left to torch.
    """

    def reducer_override(self, obj: object) -> tuple | NotImplementedType:
        if torch := sys.modules.get("torch"):
            if type(obj) is torch.storage.TypedStorage and is_plain(obj._untyped_storage):
                return typed, (obj._untyped_storage, obj.dtype)
            if type(obj) is torch.UntypedStorage and is_plain(obj):
                return storage_over, (PickleBuffer(bytes_of(obj)),)
        return super().reducer_override(obj)


def is_plain(storage: torch.UntypedStorage) -> bool:
    """Whether a storage is ordinary CPU memory."""
    return storage.device.type == "cpu" and storage.nbytes() > 0 and storage.data_ptr() != 0


def bytes_of(storage: torch.UntypedStorage) -> memoryview:
    """The memory of a CPU storage, without a copy.  Its numpy view would do too, but a tensor that numpy has
    seen cannot be resized any more."""
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    memory.storage = storage  # lives as long as its memory is looked at
    return memoryview(memory).cast("B")


def typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    """In the process that unpickles: what torch's own reduction of a tensor expects."""
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def storage_over(buffer: memoryview | bytes | bytearray) -> torch.UntypedStorage:
    """In the process that unpickles: a storage with the bytes of a buffer, in its memory where it is
    large."""
    import torch

    if not isinstance(buffer, memoryview):  # it was small, and stayed in the pickle
        return torch.frombuffer(buffer, dtype=torch.uint8).clone().untyped_storage()
    return (
        getattr(buffer.obj, "storage", None) or torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    )


def room(size: int) -> memoryview:
    """Fresh memory for a large buffer; torch's own where torch is loaded, so that a tensor in it is like any
    other."""
    torch = sys.modules.get("torch")
    return bytes_of(torch.UntypedStorage(size)) if torch else memoryview(bytearray(size))


@dataclass
class Parcel:
    """A pickle and its large buffers, in the order in which it asks for them.  The buffers are the objects'
    own memory, not copies."""

    pickle: memoryview
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        return len(self.pickle) + sum(map(len, self.buffers))

    @property
    def is_large(self) -> bool:
        return self.size >= LARGE

    def write(self, file: int, start: int = 0) -> None:
        """Write all of it to a file (its descriptor), from byte `start` on."""
        if self.size > REGION - LARGE:
            raise ValueError(
                f"it takes {self.size / 1e9:.1f} GB, and there is room for {REGION / 1e9:.0f} GB"
            )
        sizes = (len(self.pickle), len(self.buffers), *map(len, self.buffers))
        header = memoryview(struct.pack(f"!{len(sizes)}Q", *sizes))
        place = start
        for part in (header, self.pickle, *self.buffers):
            _write(file, part, place)
            place = aligned(place + len(part))


def pack(value: object, pickler: type[Pickler] = Pickler) -> Parcel:
    """A value as a `Parcel`."""
    file, buffers = io.BytesIO(), []

    def stays_in_the_pickle(buffer):
        memory = buffer.raw()
        if len(memory) >= LARGE:
            buffers.append(memory)
        return len(memory) < LARGE

    pickler(file, protocol=PROTOCOL, buffer_callback=stays_in_the_pickle).dump(value)
    return Parcel(memoryview(file.getvalue()), buffers)


def unpack(file: int, start: int = 0, mapped: bool = False) -> Any:
    """The value of the parcel in a file (its descriptor) from byte `start` on.

    `mapped`: large buffers lie in the file's own pages until they are written to, and what is written is seen
    by this process alone.  Else they are read into fresh memory, and the file may go.
    """
    pickled, count = struct.unpack("!2Q", os.pread(file, 16, start))
    sizes = struct.unpack(f"!{count}Q", os.pread(file, 8 * count, start + 16))
    place, places = start + 16 + 8 * count, []
    for size in (pickled, *sizes):
        places.append(aligned(place))
        place = places[-1] + size
    memory = memoryview(mmap.mmap(file, place, access=mmap.ACCESS_COPY)) if mapped and count else None

    def buffers():
        for place, size in zip(places[1:], sizes):
            yield memory[place : place + size] if memory is not None else _read(file, place, room(size))

    return cloudpickle.loads(_read(file, places[0], bytearray(pickled)), buffers=buffers())


def aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT


def region(rank: int) -> int:
    """Where the report of a rank begins."""
    return (rank + 1) * REGION


def memory_file() -> io.FileIO:
    """A file object without a name, in memory where the system can; readable by this user only, and gone with
    its last descriptor."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("launch"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _write(file, part, place):
    while part:
        written = os.pwrite(file, part[: 1 << 30], place)
        part, place = part[written:], place + written


def _read(file, place, room):
    """Fill a room with the bytes from a place on."""
    left = memoryview(room)
    while left:
        got = os.preadv(file, [left[: 1 << 30]], place)
        if not got:
            raise EOFError("the memory file is shorter than its header says")
        left, place = left[got:], place + got
    return room
