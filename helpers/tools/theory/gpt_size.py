"""The numbers that fix a GPT's shape: what formulas, models and rehearsals are asked about."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class GPTSize:
    """The numbers that fix a GPT's shape."""

    vocabulary: int = 256  # distinct tokens; 256 = bytes
    context: int = 64  # longest sequence, in tokens
    width: int = 64  # channels of the residual stream
    layers: int = 4  # blocks
    heads: int = 4  # attention heads; width must be a multiple

    tied = True  # no field: the head's matrix is always the token table

    def __post_init__(self):
        for name, value in asdict(self).items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, not {value!r}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads

    @property
    def attention_width(self) -> int:
        """Channels of all queries together."""
        return self.width

    @property
    def modules(self) -> int:
        """6 L + 4 modules that have parameters: of a block two norms and four linear layers; both tables, the
        last norm, and the head."""
        return 6 * self.layers + 4


def of_gpts(formula: Callable) -> Callable:
    """Decorator: the formula knows the operators of the course's GPT, so that another `size` is a
    TypeError."""
    signature = inspect.signature(formula)

    @functools.wraps(formula)
    def asked(*arguments, **options):
        size = signature.bind_partial(*arguments, **options).arguments.get("size")
        if size is not None and not isinstance(size, GPTSize):
            words = f"{formula.__name__} counts a GPT, and has no formula of a {type(size).__name__}"
            raise TypeError(f"{words}: rehearse it instead")
        return formula(*arguments, **options)

    return asked
