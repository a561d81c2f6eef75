"""Helpers of *Distributed Training, Measured*: real ranks, real bytes, and the formulas beside them.

    from helpers import launch, Ledger, Traffic, corpus, models, plots, theory

Rooms: `launcher` starts ranks, `machines` gives them several machines, `measure` counts what they hold and
send and when, `theory` predicts it, `models` and `corpus` are what is trained, `training` trains and counts
it, `runs` are what lessons run besides, `plots` draws, `play` draws figures to play with, `exercises` judges,
`lesson` keeps the learner's copies, `syllabus` is the course as data, `job` is the training that the whole
course is about, `recording` runs experiments at real sizes and `recorded` reads them, `rehearsal` runs one
rank of any number without memory, and `forecast` says by it whether a training fits.  What a lesson needs of
them it imports from here.

Nothing is imported before it is asked for, so that a rank that needs one module pays for one module.
Importing starts nothing either, with one exception: in a notebook's kernel `from helpers import launch`
starts the server from which ranks are forked.  In a script or a rank it does not.
"""

from __future__ import annotations

from helpers import tools

NAMES = {  # names to import from here beside those of the tools, by the module in which they lie
    "helpers.course.job.picture": ("job_bars",),
    "helpers.course.lesson.errors": ("expected_error",),
    "helpers.course.plots.cards": ("bytes_card", "compare", "traffic_card"),
    "helpers.course.plots.hiding": ("step_timeline",),
    "helpers.course.plots.tapes": ("tapes",),
    "helpers.course.recording.on_machines": ("OnMachines", "machines_missing"),
    "helpers.course.exercises.built": ("clip_shard", "collect", "own_shard", "step_and_gather"),
    "helpers.course.runs.agreeing": ("same_training",),
    "helpers.course.runs.catching": ("caught",),
    "helpers.course.runs.constructing": ("beginning_of", "construct", "moved_by_initialize"),
    "helpers.course.runs.entered": ("who_entered",),
    "helpers.course.runs.gathered": ("gathered_in_a_step",),
    "helpers.course.runs.steps": (
        "mean_losses",
        "recorded_instructions",
        "same_losses",
        "trained",
        "trained_pipeline",
    ),
    "helpers.course.runs.under_torchrun": ("under_torchrun",),
    "helpers.course.runs.zero_2": ("coalesced",),
}
MODULES = {
    "combined": "helpers.course.runs.combined",
    "corpus": "helpers.course.corpus",
    "divided": "helpers.course.runs.divided",
    "divided_gpt": "helpers.course.runs.divided_gpt",
    "index": "helpers.course.lesson.index",
    "job": "helpers.course.job",
    "layers": "helpers.course.runs.layers",
    "mixed": "helpers.course.runs.mixed_precision",
    "models": "helpers.course.models",
    "pipelines": "helpers.course.runs.pipelines",
    "play": "helpers.course.play",
    "plots": "helpers.course.plots",
    "readiness": "helpers.course.lesson.readiness",
    "recorded": "helpers.course.recorded",
    "replicated": "helpers.course.runs.replicated",
    "resuming": "helpers.course.runs.resuming",
    "rings": "helpers.course.runs.in_a_ring",
    "schedules": "helpers.tools.theory.schedules",
    "slurm": "helpers.tools.machines.slurm",
    "ssh": "helpers.tools.machines.ssh",
    "staged": "helpers.course.runs.staged",
    "theory": "helpers.tools.theory",
    "training": "helpers.course.training",
    "zero_1": "helpers.course.runs.zero_1",
    "zero_2": "helpers.course.runs.zero_2",
}
HOMES = tools.HOMES | {name: module for module, names in NAMES.items() for name in names} | MODULES


def __getattr__(name: str) -> object:
    if name in MODULES:
        return tools.imported(MODULES[name])
    if name in HOMES:
        if name == "launch":
            tools.imported("helpers.tools.launcher.forked.warming").begin_in_notebook()
        return getattr(tools.imported(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted(HOMES)
