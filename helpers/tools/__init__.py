"""Tools for anyone who trains with DeepSpeed: ranks from a cell, bytes counted, formulas, rehearsals.

    from distributed_training_measured import Ledger, Traffic, launch, rehearse, theory

In a checkout of the course they are `helpers.tools`, and lessons import them from `helpers`.  They never
import the course.  Nothing is imported before it is asked for, so that a rank that needs one module pays for
one module.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType

from . import sources

sources.record()
NAMES = {  # the names to import from here, by the module in which they lie
    "launcher.cluster.hosts": ("Hosts",),
    "launcher.cluster.srun": ("SlurmNodes",),
    "launcher.command.command_job": ("DeepSpeedCommand",),
    "launcher.export": ("export",),
    "launcher.failures": ("LaunchError", "RankError"),
    "launcher.forked.forkservers": ("preload",),
    "launcher.jobs": ("launch",),
    "launcher.resources": ("choose_device",),
    "machines.namespaces": ("Machines",),
    "machines.slurm": ("Slurm",),
    "machines.ssh": ("Ssh",),
    "measure.carried": ("Carried",),
    "measure.clock": ("Clock",),
    "measure.constants": ("Effort", "constants", "fit_latency_and_bandwidth"),
    "measure.internals": ("group_patience", "limit_patience"),
    "measure.ledger": ("Ledger", "OutOfMemory"),
    "measure.saved": ("SavedActivations",),
    "measure.timelines": ("chrome_trace", "clock_rows"),
    "measure.traffic": ("Traffic",),
    "rehearsal.allocator": ("Allocator",),
    "rehearsal.expandable": ("Expandable",),
    "rehearsal.rehearsing": ("rehearse",),
}
HOMES = {name: f"{__name__}.{module}" for module, names in NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in HOMES:
        return getattr(imported(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted(HOMES)


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
