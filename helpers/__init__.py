"""Helpers of *Distributed Training, Measured*: real ranks, real bytes, and the formulas beside them.

    from helpers import launch, Ledger, Traffic, corpus, models, plots, theory

Rooms: `launcher` starts ranks, `machines` gives them several machines, `measure` counts what they hold and
send and when, `theory` predicts it, `models` and `corpus` are what is trained, `plots` draws, `exercises`
judges, `lesson` keeps the learner's copies, `recording` runs and reads experiments at real sizes, `rehearsal`
runs one rank of any number without memory.  What a lesson needs of them it imports from here.

Nothing is imported before it is asked for, so that a rank that needs one module pays for one module.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType

from helpers import sources

sources.record()
NAMES = {  # where the names lie that a lesson uses and that are not modules
    "helpers.tools.launch.failures": ("LaunchError", "RankError"),
    "helpers.tools.launch.forked.forkservers": ("preload",),
    "helpers.tools.launch.jobs": ("launch",),
    "helpers.tools.launch.resources": ("choose_device",),
    "helpers.course.lesson.errors": ("expected_error",),
    "helpers.tools.launch.export": ("export",),
    "helpers.tools.machines.namespaces": ("Machines",),
    "helpers.course.recording.on_machines": ("OnMachines", "machines_missing"),
    "helpers.tools.machines.slurm": ("Slurm",),
    "helpers.tools.machines.ssh": ("Ssh",),
    "helpers.tools.measure.clock": ("Clock",),
    "helpers.course.runs.constructing": ("beginning_of", "construct", "moved_by_initialize"),
    "helpers.course.runs.gathered": ("gathered_in_a_step",),
    "helpers.tools.measure.internals": ("group_patience", "limit_patience"),
    "helpers.tools.measure.ledger": ("Ledger", "OutOfMemory"),
    "helpers.tools.measure.constants": ("Effort", "constants", "fit_latency_and_bandwidth"),
    "helpers.tools.measure.saved": ("SavedActivations",),
    "helpers.course.runs.steps": (
        "mean_losses",
        "recorded_instructions",
        "same_losses",
        "trained",
        "trained_pipeline",
    ),
    "helpers.tools.measure.timelines": ("chrome_trace", "clock_rows"),
    "helpers.tools.measure.traffic": ("Traffic",),
    "helpers.tools.rehearsal.rehearsing": ("rehearse",),
}
LAZY = {name: module for module, names in NAMES.items() for name in names}
MODULES = {
    "combined": "helpers.course.runs.combined",
    "corpus": "helpers.course.corpus",
    "index": "helpers.course.lesson.index",
    "models": "helpers.course.models",
    "plots": "helpers.course.plots",
    "readiness": "helpers.course.lesson.readiness",
    "recorded": "helpers.course.recording.recorded",
    "resuming": "helpers.course.runs.resuming",
    "schedules": "helpers.tools.theory.schedules",
    "slurm": "helpers.tools.machines.slurm",
    "ssh": "helpers.tools.machines.ssh",
    "theory": "helpers.tools.theory",
    "training": "helpers.course.runs.training",
}


def __getattr__(name: str) -> object:
    if name in LAZY:
        value = getattr(imported(LAZY[name]), name)
        if name == "launch":
            importlib.import_module("helpers.tools.launch.forked.warming").begin()
        return value
    if name in MODULES:
        return imported(MODULES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted([*LAZY, *MODULES])


def imported(module: str) -> ModuleType:
    """A module, and torch where it is the first that needs it: while so much is made that stays, to look for
    garbage takes a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
