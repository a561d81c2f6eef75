"""Helpers of *Distributed Training, Measured*: real ranks, real bytes, and the formulas beside them.

    from helpers import launch, Ledger, Traffic, corpus, models, plots, theory

Rooms: `launcher` starts ranks, `machines` gives them several machines, `measure` counts what they hold and send and when, `theory` predicts it,
`models` and `corpus` are what is trained, `plots` draws, `exercises` judges, `lesson` keeps the learner's copies, `recording` runs and reads
experiments at real sizes, `rehearsal` runs one rank of any number without memory.  What a lesson needs of them it imports from here.

Nothing is imported before it is asked for, so that a rank that needs one module pays for one module.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType

NAMES = {  # where the names lie that a lesson uses and that are not modules
    "helpers.launcher.failures": ("LaunchError", "RankError"),
    "helpers.launcher.forked": ("preload",),
    "helpers.launcher.jobs": ("launch",),
    "helpers.launcher.machine": ("choose_device",),
    "helpers.lesson.errors": ("expected_error",),
    "helpers.machines.export": ("export",),
    "helpers.machines.machines": ("Machines",),
    "helpers.machines.recorded": ("OnMachines", "machines_missing"),
    "helpers.machines.slurm": ("Slurm",),
    "helpers.machines.ssh": ("Ssh",),
    "helpers.measure.clock": ("Clock", "chrome_trace", "clock_rows"),
    "helpers.measure.constructing": ("beginning_of", "construct", "moved_by_initialize"),
    "helpers.measure.gathered": ("gathered_in_a_step",),
    "helpers.measure.internals": ("group_patience", "limit_patience"),
    "helpers.measure.ledger": ("Ledger", "OutOfMemory"),
    "helpers.measure.machine": ("Effort", "constants", "fit_latency_and_bandwidth"),
    "helpers.measure.saved": ("SavedActivations",),
    "helpers.measure.steps": ("mean_losses", "recorded_instructions", "same_losses", "trained", "trained_pipeline"),
    "helpers.measure.traffic": ("Traffic",),
    "helpers.rehearsal.rehearsing": ("rehearse",),
}
LAZY = {name: module for module, names in NAMES.items() for name in names}
MODULES = {
    "combined": "helpers.measure.combined",
    "corpus": "helpers.corpus",
    "index": "helpers.lesson.index",
    "models": "helpers.models",
    "plots": "helpers.plots",
    "readiness": "helpers.lesson.readiness",
    "recorded": "helpers.recording.recorded",
    "resuming": "helpers.measure.resuming",
    "schedules": "helpers.theory.schedules",
    "slurm": "helpers.machines.slurm",
    "ssh": "helpers.machines.ssh",
    "theory": "helpers.theory",
    "training": "helpers.measure.training",
}


def __getattr__(name: str) -> object:
    if name in LAZY:
        found = getattr(imported(LAZY[name]), name)
        if name == "launch":
            importlib.import_module("helpers.launcher.warming").begin()
        return found
    if name in MODULES:
        return imported(MODULES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted([*LAZY, *MODULES])


def imported(module: str) -> ModuleType:
    """A module, and torch where it is the first that needs it: while so much is made that stays, to look for garbage takes a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
