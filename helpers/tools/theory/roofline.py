"""How fast a machine can be at best: the few constants that describe it, the roofline that follows, and what
part of the peak a training run reaches.

Work on b bytes of memory with f FLOPs takes at least f / rate and at least b / bandwidth seconds; the longer
of the two is its time.  f / b is the *arithmetic intensity*.  Below rate / bandwidth, the *ridge*, memory
decides, above it arithmetic (Williams, Waterman and Patterson, "Roofline: an insightful visual performance
model for multicore architectures", 2009).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ..whole import check_choice, positive
from .gpt_size import GPTSize
from .layers import gpt_parameters
from .llama import LlamaSize
from .zero_config import ELEMENT_BYTES

# bytes: rows of a matrix that begin at multiples of these can be read in whole pieces by a GPU's matrix units
ALIGNED = 16
PASSES = {"forward": 1, "step": 3, "checkpointed step": 4}  # in units of a forward pass; backward is two


@dataclass(frozen=True, kw_only=True)
class MachineConstants:
    """One device of a machine, and the connection between its ranks, in a few measured numbers
    (`helpers.tools.measure.constants` measures them); dtypes are "bf16" and "fp32"."""

    name: str = ""  # for a label
    # {dtype: {n: FLOPs per second of products whose smallest side is n, as in a transformer of width n}}
    matrix: Mapping[str, Mapping[int, float]]
    memory: float  # bytes per second, read and written together, of work that computes next to nothing
    launch: float  # seconds in which the host hands one operator to the device, in a loop of nothing else
    call: float | None = None  # the same inside a model's passes, with modules and autograd; else `launch`
    latency: float = 0.0  # alpha, seconds per message between ranks
    bandwidth: float | None = None  # 1 / beta, bytes per second that a rank sends; None with one rank
    # {dtype: FLOPs per second of fused causal attention, half of the scores counted; or {tokens x channels of
    # a head: such a rate}}; else the matrix rate
    attention: Mapping[str, float | Mapping[int, float]] = field(default_factory=dict)
    # {dtype: FLOPs per second of products where a dimension is odd}, such as a vocabulary of 50257
    misaligned: Mapping[str, float] = field(default_factory=dict)
    asynchronous: bool = True  # whether the host goes on while the device works (a GPU)

    def __post_init__(self):
        if not self.matrix or not all(self.matrix.values()):
            raise ValueError("matrix must hold at least one rate, {dtype: {size: FLOPs per second}}")
        sizes = {dtype: {int(n): by_size[n] for n in by_size} for dtype, by_size in self.matrix.items()}
        object.__setattr__(self, "matrix", sizes)  # JSON has no other keys than strings
        rates = [rate for by_size in sizes.values() for rate in by_size.values()]
        rates += [self.memory, *self.misaligned.values()]
        for rate in self.attention.values():
            rates += rate.values() if isinstance(rate, Mapping) else [rate]
        rates += [] if self.bandwidth is None else [self.bandwidth]
        if not all(rate > 0 for rate in rates) or min(self.launch, self.call or 0, self.latency) < 0:
            raise ValueError(f"rates and bandwidths must be positive, times must not be negative: {self}")

    def matrix_rate(self, rows: int, inner: int, columns: int, dtype: str = "bf16") -> float:
        """FLOPs per second of a (rows, inner) x (inner, columns) product, by its smallest side: between the
        measured ones on a straight line of logarithms, beyond them that of the nearest."""
        by_size, sides = self._of_dtype(dtype), (rows, inner, columns)
        if dtype in self.misaligned and any(side * ELEMENT_BYTES[dtype] % ALIGNED for side in sides):
            return self.misaligned[dtype]
        return _between(by_size, min(sides))

    def attention_rate(self, dtype: str = "bf16", size: int | None = None) -> float:
        """FLOPs per second of fused attention, of so many tokens x channels of a head where rates of several
        were measured; by default of the fewest."""
        rate = self.attention.get(dtype) or max(self._of_dtype(dtype).values())
        return _between(rate, size or min(rate)) if isinstance(rate, Mapping) else rate

    def check_bandwidth(self, ranks: int) -> None:
        """Raise a ValueError where several ranks are to send and no bandwidth was measured."""
        if ranks > 1 and self.bandwidth is None:
            remedy = f"measure them with {ranks} ranks, or set bandwidth and latency"
            raise ValueError(f"these constants hold no bandwidth between ranks: {remedy}")

    def peak(self, dtype: str = "bf16") -> float:
        """The best measured matrix rate, FLOPs per second: the roof of the roofline."""
        return max(self._of_dtype(dtype).values())

    def _of_dtype(self, dtype):
        if dtype not in self.matrix:
            raise ValueError(f"no matrix rate was measured for {dtype!r}, only for {', '.join(self.matrix)}")
        return self.matrix[dtype]

    def to_dict(self) -> dict:
        """Plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping) -> MachineConstants:
        """Of what `to_dict` gave, also after a journey through JSON."""
        return cls(**values)


def _between(by_size, size):
    """A rate by size: between the measured ones on a straight line of logarithms, beyond them the nearest."""
    size = min(max(size, min(by_size)), max(by_size))
    if size in by_size:
        return by_size[size]
    low = max(known for known in by_size if known < size)
    high = min(known for known in by_size if known > size)
    part = math.log(size / low) / math.log(high / low)
    return by_size[low] ** (1 - part) * by_size[high] ** part


def matrix_flops(rows: int, inner: int, columns: int) -> int:
    """2 m k n FLOPs of a product (m, k) x (k, n)."""
    return 2 * rows * inner * columns


def matrix_bytes(rows: int, inner: int, columns: int, element_bytes: int) -> int:
    """e (m k + k n + m n): both factors read once and the product written once, as by large enough caches."""
    return element_bytes * (rows * inner + inner * columns + rows * columns)


def arithmetic_intensity(flops: float, moved_bytes: float) -> float:
    """FLOPs per byte that is read from or written to memory."""
    positive(moved_bytes=moved_bytes)
    return flops / moved_bytes


def ridge(rate: float, bandwidth: float) -> float:
    """FLOPs per byte from which on arithmetic decides and not memory: rate / bandwidth."""
    return rate / bandwidth


def roofline_rate(intensity: float, rate: float, bandwidth: float) -> float:
    """FLOPs per second that are attainable at an arithmetic intensity (FLOPs per byte), a rate of arithmetic
    and a bandwidth of memory: min(rate, intensity x bandwidth)."""
    return min(rate, intensity * bandwidth)


def roofline_seconds(flops: float, moved_bytes: float, rate: float, bandwidth: float) -> float:
    """max(FLOPs / rate, bytes / bandwidth): the least time for some work."""
    return max(flops / rate, moved_bytes / bandwidth)


def matrix_seconds(
    rows: int, inner: int, columns: int, machine: MachineConstants, dtype: str = "bf16"
) -> float:
    """The roofline of one matrix product (m, k) x (k, n) on a machine."""
    shape, rate = (rows, inner, columns), machine.matrix_rate(rows, inner, columns, dtype)
    moved = matrix_bytes(*shape, ELEMENT_BYTES[dtype])
    return roofline_seconds(matrix_flops(*shape), moved, rate, machine.memory)


def flops_per_token(
    size: GPTSize | LlamaSize, sequence: int, passes: str = "step", causal: bool = False
) -> float:
    """FLOPs of one token, with L blocks of width C and T tokens in a sequence: 2 N + 4 L C T in a "forward"
    pass, 6 N + 12 L C T in a "step", 8 N + 16 L C T in a "checkpointed step".

    N is all parameters with a tied head, without the token table where the head has a matrix of its own
    (Kaplan et al., arXiv 2001.08361, section 2.1); of a Llama C is a d.  Attention counts all T x T scores
    (Chowdhery et al., PaLM, arXiv 2204.02311, appendix B), `causal` the half that is needed.  The third form
    counts the head as computed again too, as is usual (Korthikanti et al., arXiv 2205.05198, section 6); the
    course's checkpointing leaves it alone.
    """
    check_choice("passes", passes, PASSES)
    parameters = gpt_parameters(size) - (0 if size.tied else size.vocabulary * size.width)
    scores = 4 * size.layers * size.attention_width * sequence * (0.5 if causal else 1)
    return PASSES[passes] * (2 * parameters + scores)


def mfu(size: GPTSize | LlamaSize, sequence: int, tokens_per_second: float, peak: float) -> float:
    """Model FLOPs utilisation: the FLOPs that a step *needs*, per second, as a part of the machine's peak
    (arXiv 2204.02311, section 4.1 and appendix B).

    Work that is done twice (checkpointing) does not count, so that it cannot look like speed.  The peak, in
    FLOPs per second, is of the same devices as the tokens: the maker's, or a measured one (say which).
    """
    positive(peak=peak)
    return tokens_per_second * flops_per_token(size, sequence) / peak
