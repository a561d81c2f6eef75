"""The numbers that fix a GPT's shape: what formulas, models and rehearsals are asked about."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class GPTSize:
    """The numbers that fix a GPT's shape."""

    vocabulary: int = 256  # distinct tokens; 256 = bytes
    context: int = 64  # longest sequence, in tokens
    width: int = 64  # channels of the residual stream
    layers: int = 4  # blocks
    heads: int = 4  # attention heads; width must be a multiple

    def __post_init__(self):
        for name, value in asdict(self).items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, not {value!r}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
