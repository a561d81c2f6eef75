"""What the bytes of a moment are, by name: a ledger's categories, and temporaries by what made them.

A ledger knows what lasts.  What comes and goes is known by the operator that made it, its type and shape, the
phase, and the function of DeepSpeed, transformers or torch's optimizers that asked for it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..measure.held import MODEL_STATES, Storage

if TYPE_CHECKING:
    import torch

    from ..measure.ledger import Ledger

LIBRARIES = ("/deepspeed/", "/transformers/", "/torch/optim/")
GATHERED, LOGITS, BUCKET, SENT = "gathered weights", "logits", "bucket", "copy to be sent"
ADAM, NORM, WIDENED = "Adam's temporaries", "norm in fp64", "gradients in fp32"
FLATTENED, OF_ACTIVATIONS, OTHER = "flattened gradients", "gradients of activations", "other"
TRANSIENT = (
    *("activations", LOGITS, OF_ACTIVATIONS, GATHERED, BUCKET, SENT),
    *(WIDENED, FLATTENED, NORM, ADAM, OTHER),
)
SENDING = (
    "allreduce_bucket"  # DeepSpeed's functions: one that copies a bucket, one that keeps a rank's own part
)
OWN_PART = "copy_grads_in_partition"
OPTIMIZERS = ("optim", "adam")  # folders of torch's and of DeepSpeed's


@dataclass(frozen=True, slots=True)
class Made:
    """How a storage came to be.

    Attributes:
        operation: the operator's name, as "_to_copy".
        dtype, shape: of the tensor that it returned.
        phase: in which.
        folder, function: of the innermost frame of a library; empty where there is none.
    """

    operation: str
    dtype: str
    shape: tuple[int, ...]
    phase: str
    folder: str
    function: str

    @classmethod
    def of(cls, operation: str, tensor: torch.Tensor, phase: str) -> Made:
        """Of a tensor that an operation has just returned."""
        frame = sys._getframe(1)
        while frame and not any(library in frame.f_code.co_filename for library in LIBRARIES):
            frame = frame.f_back
        folder = Path(frame.f_code.co_filename).parent.name if frame else ""
        place = folder, frame.f_code.co_name if frame else ""
        return cls(operation, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), phase, *place)


def named(category: str, made: Made | None, vocabulary: int) -> str:
    """The name of a storage: a state's category, or one of `TRANSIENT`.

    Args:
        category: the ledger's.
        made: None where no operator returned it.
        vocabulary: entries; what has so many columns is logits, or of their loss.
    """
    is_late = made is not None and made.phase != "building"
    if category == "buffers":
        return BUCKET
    if category in MODEL_STATES:
        return GATHERED if category == "parameters" and is_late else category
    if is_late and made.shape and made.shape[-1] == vocabulary:
        return LOGITS
    if category in ("activations", "inputs"):
        return "activations"
    return temporary(made) if is_late else OTHER


def temporary(made: Made) -> str:
    """The name of one that no category claims; a single number is no part that one looks for."""
    if prod(made.shape) == 1:
        return OTHER
    if made.function == SENDING:
        return SENT
    if made.function == OWN_PART:
        return "gradients"
    if made.folder in OPTIMIZERS:
        return ADAM
    if made.phase == "step":
        of_types = {"float64": NORM, "float32": WIDENED}
        return FLATTENED if made.operation == "cat" else of_types.get(made.dtype, OTHER)
    return OF_ACTIVATIONS if made.phase == "backward" else OTHER


def alive(ledger: Ledger, moment: int) -> Iterator[Storage]:
    """The storages of a moment of the ledger's clock."""
    for storage in ledger.storages:
        if storage.born <= moment and (storage.died is None or storage.died > moment):
            yield storage


def parts_at(ledger: Ledger, moment: int, made: Mapping[int, Made], vocabulary: int) -> dict[str, int]:
    """{name: bytes} of a moment.

    Args:
        made: by a storage's birth, as the recorder of `requests` has it.
    """
    held = Counter()
    for storage in alive(ledger, moment):
        held[named(storage.final_category, made.get(storage.born), vocabulary)] += storage.bytes
    return dict(held)
