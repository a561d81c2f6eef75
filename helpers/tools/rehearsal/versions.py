"""Which versions of libraries a rehearsal, which replaces parts of them, is made for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

OLDEST_TORCH = (2, 13)  # with 2.11 rehearsals failed, 2.12 was not tried
TESTED = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.23.0"}


def supported() -> str:
    """In words, what is supported and was tested."""
    tested = ", ".join(f"{name} {number}" for name, number in TESTED.items())
    return "It needs torch {}.{} or newer, and was tested with {}.".format(*OLDEST_TORCH, tested)


def told() -> str:
    """The project's own version, what is installed here, and what is supported."""
    here = ", ".join(f"{name} {installed(name)}" for name in TESTED)
    return f"rehearse {installed('distributed-training-measured')}; here are {here}.\n{supported()}"


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
