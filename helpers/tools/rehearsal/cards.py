"""GPUs by name: `card("H100 80GB")`, `card("4090")`.

The driver keeps a part of a GPU's memory for itself, more with error correction.  What is left is torch's
`get_device_properties(0).total_memory`, and stands in its errors: "GPU 0 has a total capacity of ...".  H100
and H200 were recorded by this project; the others are as such errors in public reports give them, and vary by
some hundredths of a GiB from driver to driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Card:
    """A kind of GPU: its name, and the GiB that torch can have."""

    name: str
    capacity_gib: float

    @property
    def memory(self) -> int:
        """Bytes that a process can have."""
        return int(self.capacity_gib * GIB)


CARDS = (
    Card("T4 16GB", 14.56),
    Card("V100 16GB", 15.77),
    Card("V100 32GB", 31.73),
    Card("RTX 3060 12GB", 11.76),
    Card("RTX 3090 24GB", 23.67),
    Card("RTX 4080 16GB", 15.70),
    Card("RTX 4090 24GB", 23.61),
    Card("RTX 5090 32GB", 31.35),
    Card("A10 24GB", 22.04),
    Card("L4 24GB", 22.03),
    Card("RTX A5000 24GB", 23.67),
    Card("RTX A6000 48GB", 47.40),
    Card("L40S 48GB", 44.39),
    Card("A100 40GB", 39.39),
    Card("A100 80GB", 79.14),
    Card("H100 80GB", 79.16),
    Card("H200 141GB", 139.80),
    Card("B200 180GB", 178.35),
)


class UnknownCard(ValueError):
    """No GPU has this name, or several have; the message lists them."""


def card(name: str) -> Card:
    """The GPU whose name has all of these words, in any order and case: "A100 40GB", "4090", "rtx 3090".

    Raises:
        UnknownCard: there is none, or more than one.
    """
    words = words_of(name)
    fitting = [known for known in CARDS if words and set(words) <= set(words_of(known.name))]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(known.name for known in fitting or CARDS)
    if fitting:
        raise UnknownCard(f"{name!r} can be each of {names}: say which")
    raise UnknownCard(f"no GPU {name!r} is known here; give its memory, as 80GiB, or one of {names}")


def words_of(name: str) -> list[str]:
    """Words in capitals, without the maker's: "NVIDIA H100-80GB SXM" is H100, 80GB."""
    words = re.findall(r"[A-Z0-9]+", name.upper().replace(" GB", "GB"))
    return [
        word for word in words if word not in ("NVIDIA", "GEFORCE", "TESLA", "SXM", "SXM4", "SXM5", "PCIE")
    ]
