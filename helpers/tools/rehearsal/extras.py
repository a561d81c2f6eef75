"""Libraries that are installed only where somebody asks for what needs them."""

from __future__ import annotations

from importlib.util import find_spec

from .refusing import BadQuestion

EXTRAS = {"matplotlib": "plot", "peft": "lora"}  # by library: the extra of this package that brings it


def need(library: str, asked: str) -> None:
    """Raises a `BadQuestion` where the library is not installed that this takes: says how to install it."""
    if find_spec(library) is None:
        raise BadQuestion(
            f"{asked} needs {library}, which is not installed: "
            f"pip install 'distributed-training-measured[{EXTRAS[library]}]'"
        )
