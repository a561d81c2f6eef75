"""What a rehearsed rank computes and sends, by pass of a step: its matrix products, its attention, the bytes
that all other operators read and write, and its messages.

Bytes are those of an eager program: each operator reads its arguments from memory and writes its results
there.  Nothing here depends on a kind of GPU; `seconds` has their constants.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils import flop_counter

from ..measure.internals import tensors_among
from ..measure.messages import listen
from .gpu import GPU

if TYPE_CHECKING:
    from torch._ops import OpOverload

PASSES = ("forward", "backward", "step")
# The kinds of work; a message is counted under itself.
PRODUCT, ATTENTION, MOVED, ISSUED, VISITED = "product", "attention", "moved", "issued", "visited"
DTYPES = {torch.bfloat16: "bf16", torch.float16: "bf16"}  # all others are "fp32"
PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "_grouped_mm": 0,
    "addmm": 1,
    "addmv": 1,
    "baddbmm": 1,
}  # first factor
OVERWRITES = {
    "copy_",
    "fill_",
    "zero_",
    "_foreach_copy_",
    "_foreach_zero_",
}  # without a look at what was there
# They look at few elements of what they are given.
GATHERS = {"embedding", "gather", "index", "index_select", "nll_loss_forward", "nll_loss_backward"}
IDLE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"}
IDLE |= {"detach", "_unsafe_view", "lift_fresh", "record_stream", "_local_scalar_dense"}


class Work:
    """Counts from `begin` on; `work` is the one of this process.

    Attributes:
        passes: (name, counts) of each pass so far: {("product", rows, inner, columns, dtype): times,
            ("attention", tokens x channels of a head, dtype, whether no token sees later ones): FLOPs of all
            scores, ("moved",): bytes that other operators read and write, ("issued",): operators,
            ("visited",): modules whose forward pass has begun, and each `Message`: times}.
    """

    def __init__(self) -> None:
        self.passes: list[tuple[str, Counter]] = []
        self.now: Counter | None = None

    def begin(self, name: str) -> None:
        """What comes now belongs to this pass, if it is one of `PASSES`."""
        self.now = None
        if name in PASSES:
            self.now = Counter()
            self.passes.append((name, self.now))

    def count(self, *what: object, times: float = 1) -> None:
        """So many times more of (kind, what distinguishes it)."""
        if self.now is not None:
            self.now[what] += times

    def kernel(self, moved: float) -> None:
        """What no operator of torch's stands for reads and writes so many bytes."""
        self.count(MOVED, times=moved)
        self.count(ISSUED)

    def message(self, message: object, *others: object) -> None:
        """For `messages.listen`."""
        if self.now is not None:
            self.now[message] += 1

    def visit(self, *module: object) -> None:
        """For a hook of modules."""
        self.count(VISITED)

    def operator(self, function: OpOverload, args: tuple, kwargs: dict, results: object) -> None:
        """An operator has run."""
        if self.now is None or (kind := kind_of(function)) is None:
            return
        if not any(tensor.device.type == GPU for tensor in tensors_among(args, results)):
            return
        self.count(ISSUED)
        if kind == PRODUCT:
            times, *sides = product(args[PRODUCTS[function.overloadpacket.__name__] :])
            self.count(PRODUCT, *sides, times=times)
        elif kind == ATTENTION:
            flops, *head = attention(function, args, kwargs)
            self.count(ATTENTION, *head, times=flops)
        else:
            self.count(MOVED, times=moved(function, args, kwargs, results))


work = Work()


@functools.cache
def kind_of(function: OpOverload) -> str | None:
    """`PRODUCT`, `ATTENTION`, `MOVED`, or None for an operator without work of its own."""
    name = function.overloadpacket.__name__
    if function.namespace != "aten" or function.is_view or name in IDLE:
        return None
    if name in PRODUCTS:
        return PRODUCT
    return (
        ATTENTION if "_attention" in name and function.overloadpacket in flop_counter.flop_registry else MOVED
    )


def product(factors: tuple) -> tuple[int, int, int, int, str]:
    """How many matrix products, each (rows, inner) x (inner, columns), and of which type.

    Of products in groups (`_grouped_mm`, where a group has a matrix and some of the rows) each is taken to
    have as many rows as any other.
    """
    left, right = factors[:2]
    inner, columns = left.shape[-1], right.shape[-1] if right.dim() > 1 else 1
    rows, times = left.shape[-2], math.prod(left.shape[:-2])
    if left.dim() == 2 and right.dim() == 3:
        times = len(right)
        rows = -(-rows // times)
    return times, rows, inner, columns, DTYPES.get(left.dtype, "fp32")


def attention(function: OpOverload, args: tuple, kwargs: dict) -> tuple[float, int, str, bool]:
    """FLOPs of fused attention by torch's own count, all scores; tokens x channels of a head, the type, and
    whether no token sees later ones."""
    names = [argument.name for argument in function._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    query, count = given["query"], flop_counter.flop_registry[function.overloadpacket]
    flops = count(*args, **kwargs, out_val=None) if query.numel() else 0  # AutoTP may leave a rank no head
    size = query.shape[-2] * query.shape[-1]
    return flops, size, DTYPES.get(query.dtype, "fp32"), bool(given.get("is_causal"))


def moved(function: OpOverload, args: tuple, kwargs: dict, results: object) -> int:
    """Bytes that an operator reads and writes."""
    name, places = function.overloadpacket.__name__, written(function)
    read = [] if name in GATHERS else tensors_among(*args[1 if name in OVERWRITES else 0 :], *kwargs.values())
    made = tensors_among(*(args[place] for place in places)) if places else tensors_among(results)
    return sum(map(size, read)) + sum(map(size, made))


@functools.cache
def written(function: OpOverload) -> tuple[int, ...]:
    """The places of arguments that are changed; gradients that an optimizer is given are not."""
    arguments = enumerate(function._schema.arguments)
    return tuple(
        place
        for place, one in arguments
        if one.alias_info is not None
        and one.alias_info.is_write
        and one.name != "grads"
        and not one.kwarg_only
    )


def size(tensor: torch.Tensor) -> int:
    """Bytes of memory that a tensor's elements take; of one that was expanded those that are there."""
    sizes = (side for side, stride in zip(tensor.shape, tensor.stride()) if stride)
    return tensor.itemsize * (tensor.numel() if 0 not in tensor.stride() else math.prod(sizes))


def adam(chunk: int, flag: torch.Tensor, tensors: Sequence[list[torch.Tensor]], *options: object) -> None:
    """`multi_tensor_adam`, a kernel of DeepSpeed's own: gradients are read; parameters and two moments are
    read and written."""
    gradients, *others = tensors
    work.kernel(sum(map(size, gradients)) + 2 * sum(size(one) for part in others for one in part))


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Inside, messages and modules are counted too."""
    end = listen(work.message)
    visited = torch.nn.modules.module.register_module_forward_pre_hook(work.visit)
    try:
        yield
    finally:
        visited.remove()
        end()


def of_a_step(passes: Sequence[tuple[str, Counter]], micro_batches: int, accumulation: int) -> dict:
    """{pass: counts} of a step with so many micro-batches; of those that were rehearsed all but the last are
    alike."""
    last, total = passes[-len(PASSES) * micro_batches :], {name: Counter() for name in PASSES}
    for place, (name, counts) in enumerate(last):
        is_last = place >= len(last) - len(PASSES)
        times = 1 if is_last else (accumulation - 1) / (micro_batches - 1)
        for what, number in counts.items():
            total[name][what] += times * number
    return total
