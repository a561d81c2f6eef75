"""What `helpers.record` stored: runs at real sizes, each labelled with its hardware, versions and date, beside what theory predicts for it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from helpers import experiments, theory
from helpers.lessons import ROOT
from helpers.models import GPTSize

STORED = ROOT / "recorded"
STATES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        experiment: name of the function in `helpers.experiments`.
        ranks: how many.
        arguments: of the function; `size` by its name.
        configuration: DeepSpeed's, or None.
        reports: what each rank returned; empty where the run failed.
        error: why it failed, else "".
        size: the model's `GPTSize`, or None.
        numbers: elements of every parameter of the whole model.
        label: hardware, versions and date, for titles.
        on_gpu: whether it ran on GPUs.
    """

    experiment: str
    ranks: int
    arguments: dict
    configuration: dict | None
    reports: tuple
    error: str
    size: GPTSize | None
    numbers: tuple
    label: str
    on_gpu: bool

    @property
    def parameters(self):
        return sum(self.numbers)

    @property
    def device(self):
        return "cuda" if self.on_gpu else "cpu"

    def states(self, rank, moment="between micro-batches"):
        """Measured bytes of the model states by category."""
        categories = self.reports[rank]["moments"][moment]["categories"]
        return {category: categories[category] for category in STATES}

    def predicted(self, rank, moment="between micro-batches"):
        """Bytes by category that the exact formula gives for a rank of the experiments `zero`, `tensor` and `pipeline`."""
        configuration = self.configuration or experiments.configuration(self.arguments["stage"])  # a run that failed has told nobody
        zero = configuration["zero_optimization"]
        replicas, replica = (self.ranks, rank) if self.experiment == "zero" else (1, 0)
        numbers = self.numbers if self.experiment == "zero" else self.reports[rank]["numbers"]
        exact = theory.deepspeed_bytes(
            numbers, replicas, replica, zero["stage"], "bf16", moment, zero["reduce_bucket_size"], zero["overlap_comm"],
            zero["stage3_param_persistence_threshold"], device=self.device,
        )  # fmt: skip
        return {category: exact[category] for category in STATES}


def files(experiment):
    """This machine's own recordings where a lesson is opened from `work/`, else the course's."""
    own = sorted(Path.cwd().glob(f"recorded/{experiment}-*.json")) if Path.cwd() == ROOT / "work" else []
    return own or sorted(STORED.glob(f"{experiment}-*.json"))


def read(path):
    """The runs of one file."""
    found = json.loads(path.read_text())
    versions = found["versions"]
    hardware = f"{found['gpus']} x {found['device']}" if found["gpus"] else found["device"]
    label = f"recorded on {hardware}, torch {versions['torch']}, DeepSpeed {versions['deepspeed']}, {found['date'][:10]}"
    for run in found["runs"]:
        name = run["arguments"].get("size")
        yield Run(
            experiment=found["experiment"],
            ranks=run["ranks"],
            arguments=run["arguments"],
            configuration=run.get("configuration"),
            reports=tuple(run.get("reports", ())),
            error=run.get("error", ""),
            size=GPTSize(**found["sizes"][name]) if name else None,
            numbers=tuple(math.prod(shape) for shape in found["shapes"][name]) if name else (),
            label=label,
            on_gpu=found["gpus"] > 0,
        )


def runs(experiment, **arguments):
    """The recorded runs of an experiment with these arguments; `ranks` counts as one of them."""
    found = [run for path in files(experiment) for run in read(path)]
    chosen = [run for run in found if all({"ranks": run.ranks, **run.arguments}.get(name) == value for name, value in arguments.items())]
    if not chosen:
        raise LookupError(f"no recorded run of {experiment!r} with {arguments}: record it with `python -m helpers.record {experiment}`")
    return chosen


def timelines(run):
    """A recorded pipeline step as `plots.pipeline_timeline` and `helpers.schedules` take it: (kind, stage, micro-batch, start, end) in ms."""
    begin = min(start for report in run.reports for _, start, _ in report["timeline"])
    found = []
    for stage, report in enumerate(run.reports):
        counts = dict.fromkeys("FB", 0)
        row = []
        for kind, start, end in report["timeline"]:
            row.append((kind, stage, counts[kind], 1e3 * (start - begin), 1e3 * (end - begin)))
            counts[kind] += 1
        found.append(row)
    return found


def zero_clusters(found, rank=0):
    """For `plots.memory_bars`: the states between micro-batches of runs of `zero`: by the paper, by the exact formula, recorded."""
    clusters = {}
    for run in found:
        paper = theory.ideal_bytes(run.parameters, run.ranks, run.arguments["stage"])
        bars = {"paper": paper, "exact": run.predicted(rank), "recorded": None if run.error else run.states(rank)}
        clusters[f"stage {run.arguments['stage']}"] = bars
    return clusters
