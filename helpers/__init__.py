"""Helpers of *Distributed Training, Measured*: real ranks, real bytes, and the formulas beside them.

    from helpers import launch, Ledger, Traffic, corpus, models, plots, theory

Rooms: `launcher` starts ranks, `machines` gives them several machines, `measure` counts what they hold and send and when, `theory` predicts it,
`models` and `corpus` are what is trained, `plots` draws, `exercises` judges, `lesson` keeps the learner's copies, `recording` runs and reads
experiments at real sizes, `rehearsal` runs one rank of any number without memory.

Nothing is imported before it is asked for, so that a rank that needs one module pays for one module.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType

LAZY = {  # a name that is not a module of this package: the module that has it
    "Clock": "helpers.measure.clock",
    "Ledger": "helpers.measure.ledger",
    "Machines": "helpers.machines.machines",
    "SavedActivations": "helpers.measure.saved",
    "Slurm": "helpers.machines.slurm",
    "Ssh": "helpers.machines.ssh",
    "Traffic": "helpers.measure.traffic",
    "expected_error": "helpers.lesson.errors",
    "export": "helpers.machines.export",
    "launch": "helpers.launcher.jobs",
    "preload": "helpers.launcher.forked",
    "rehearse": "helpers.rehearsal.rehearsing",
}
MODULES = {name: f"helpers.{name}" for name in ("corpus", "models", "plots", "theory")} | {"recorded": "helpers.recording.recorded"}
__all__ = [
    "Clock",
    "Ledger",
    "Machines",
    "SavedActivations",
    "Slurm",
    "Ssh",
    "Traffic",
    "corpus",
    "expected_error",
    "export",
    "launch",
    "models",
    "plots",
    "preload",
    "recorded",
    "rehearse",
    "theory",
]


def __getattr__(name: str) -> object:
    if name in LAZY:
        found = getattr(imported(LAZY[name]), name)
        if name == "launch":
            importlib.import_module("helpers.launcher.warming").begin()
        return found
    if name in MODULES:
        return imported(MODULES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {', '.join(__all__)}")


def imported(module: str) -> ModuleType:
    """A module, and torch where it is the first that needs it: while so much is made that stays, to look for garbage takes a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
