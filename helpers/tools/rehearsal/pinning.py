"""What a rank's tensors take of its host's memory, pinned ones as torch pins them.

torch rounds what it pins up to a power of two, and keeps it for the next tensor of that size when a tensor
dies (c10/core/CachingHostAllocator.h).  Measured with torch 2.11 on an H200: 3.0 GB took 4,294,967,296 bytes,
which stayed when they were freed and then served 2.5 GB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from ..measure.held import Storage

GAPS = "pinned, and not used"


class Pins:
    """Which storages were pinned; `pins` are those of this process."""

    def __init__(self) -> None:
        self.storages: set[int] = set()  # by `Storage.born`
        self.pinning = False

    def pinned(self, make: Callable[..., torch.Tensor], *arguments: object) -> torch.Tensor:
        """What `make(*arguments)` makes, pinned."""
        self.pinning = True
        try:
            return make(*arguments)
        finally:
            self.pinning = False

    def note(self, storage: Storage) -> None:
        """A storage of the host was made."""
        if self.pinning:
            self.storages.add(storage.born)


pins = Pins()


def answers() -> dict[str, object]:
    """{name: method} of the accelerator: how DeepSpeed's pins on a GPU, and what torch then makes."""
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

    return {
        "pin_memory": DeepSpeedAccelerator.pin_memory,
        "_torch_pin_memory": lambda self, tensor: pins.pinned(tensor.clone),
        "_torch_empty_pinned": lambda self, tensor, shape: pins.pinned(tensor.new_empty, shape),
    }


def highest(storages: Iterable[Storage], pinned: set[int]) -> dict[str, int]:
    """{category: bytes} at the moment at which the host's memory holds most; `GAPS` is what pinning takes
    beyond the tensors' own bytes.

    Args:
        pinned: of those storages that were pinned, `born`.
    """
    events = [(storage.born, 1, storage) for storage in storages]
    events += [(storage.died, -1, storage) for storage in storages if storage.died is not None]
    held, kept, most = Counter(), Counter(), Counter()
    for _, change, storage in sorted(events, key=lambda event: event[0]):
        held[storage.final_category] += change * storage.bytes
        if storage.born in pinned:
            block = 1 << (storage.bytes - 1).bit_length()
            is_new = change > 0 and not kept[block]
            kept[block] -= 0 if is_new else change
            held[GAPS] += (block if is_new else 0) - change * storage.bytes
        if held.total() > most.total():
            most = held.copy()
    return dict(most)
