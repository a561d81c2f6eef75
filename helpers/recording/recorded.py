"""What the recorder stored: runs at real sizes, each labelled with hardware, versions and date, beside what theory predicts for it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from helpers import theory
from helpers.models import GPTSize
from helpers.paths import RECORDED, WORK

STATES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        experiment: its name in `helpers.recording.table`.
        ranks: how many.
        arguments: of the function; `size` by its name.
        configuration: DeepSpeed's, or None.
        reports: what each rank returned; empty where the run failed.
        error: why it failed, else "".
        device_memory: bytes that each GPU has.
        size: the model's `GPTSize`, or None.
        elements: of every parameter of the whole model.
        label: hardware, versions and date, for titles.
        on_gpu: whether it ran on GPUs.
        shared: whether several ranks shared a GPU, so that only bytes of a rank's own say something.
    """

    experiment: str
    ranks: int
    arguments: dict
    configuration: dict | None
    reports: tuple
    error: str
    size: GPTSize | None
    elements: tuple
    label: str
    on_gpu: bool
    shared: bool
    device_memory: int | None

    @property
    def out_of_memory(self):
        return "out of memory" in self.error

    @property
    def parameters(self):
        return sum(self.elements)

    @property
    def device(self):
        return "cuda" if self.on_gpu else "cpu"

    def states(self, rank, moment="between micro-batches"):
        """Measured bytes of the model states by category."""
        categories = self.reports[rank]["moments"][moment]["categories"]
        return {category: categories[category] for category in STATES}

    def step_peak(self, rank):
        """Measured: the most bytes that a rank held while its optimizer stepped."""
        return self.reports[rank]["moments"]["after step"]["peak"]

    def predicted_step_peak(self, rank):
        """The same by the exact formula, for the experiment `zero`."""
        return theory.step_peak_bytes(self.elements, self.configuration, ranks=self.ranks, rank=rank, device=self.device)

    def predicted(self, rank, moment="between micro-batches"):
        """Bytes by category that the exact formula gives for a rank of the experiments `zero`, `tensor` and `pipeline`."""
        if self.experiment == "zero":
            elements, place = self.elements, {"ranks": self.ranks, "rank": rank}
        else:  # a rank has parameters of its own, and nobody to divide their states with
            elements, place = self.reports[rank]["elements"], {}
        exact = theory.deepspeed_bytes(elements, self.configuration, moment=moment, device=self.device, **place)
        return {category: exact[category] for category in STATES}


def read(path):
    """The runs of one file."""
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and record it again") from None
    for run in found["runs"]:
        name, on = run["arguments"].get("size"), run["on"]
        shared = 0 < on["gpus"] < run["ranks"]
        hardware = f"{on['gpus']} x {on['device']}" if on["gpus"] else on["device"]
        hardware = f"{hardware} shared by {run['ranks']} ranks" if shared else hardware
        yield Run(
            experiment=found["experiment"],
            ranks=run["ranks"],
            arguments=run["arguments"],
            configuration=run.get("configuration"),
            reports=tuple(run.get("reports", ())),
            error=run.get("error", ""),
            size=GPTSize(**found["sizes"][name]) if name else None,
            elements=tuple(math.prod(shape) for shape in found["shapes"][name]) if name else (),
            label=f"recorded on {hardware}, torch {on['versions']['torch']}, DeepSpeed {on['versions']['deepspeed']}, {run['date'][:10]}",
            on_gpu=on["gpus"] > 0,
            shared=shared,
            device_memory=on["device_memory"],
        )


def runs(experiment, **arguments):
    """The recorded runs of an experiment with these arguments; `ranks` counts as one of them, and `shared`, False where times matter.

    A lesson that is opened from `work/` gets this machine's own recordings where one of them did not fail, else the course's.  Runs that
    failed for another reason than memory are left out.
    """

    def known(run):
        return {"ranks": run.ranks, "shared": run.shared, **run.arguments}

    own = [WORK / "recorded"] if Path.cwd() == WORK else []
    for folder in (*own, RECORDED):
        found = [run for path in sorted(folder.glob(f"{experiment}-*.json")) for run in read(path) if run.reports or run.out_of_memory]
        chosen = [run for run in found if all(known(run).get(name) == value for name, value in arguments.items())]
        if any(run.reports for run in chosen) or (chosen and folder == RECORDED):
            return chosen
    raise LookupError(f"no recorded run of {experiment!r} with {arguments}: record it with `python -m helpers.recording.record {experiment}`")


def labels(found):
    """The labels of several runs, each once and on a line of its own, for a figure's title."""
    return "\n".join(dict.fromkeys(run.label for run in found))


def timelines(run):
    """A recorded pipeline step as `plots.pipeline_timeline` and `helpers.theory.schedules` take it: (kind, stage, micro-batch, start, end) in ms."""
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


def device_parts(run, rank=0, moment="between micro-batches"):
    """Where the bytes of a rank's GPU are: {part: bytes}, from the ledger's tensors to all that the driver has given away, their sum."""
    if run.shared or not run.on_gpu:
        raise ValueError(f"the bytes of a whole GPU are known where a rank has one of its own; this run: {run.label}")
    noted = run.reports[rank]["moments"][moment]
    tensors = sum(noted["categories"].values())
    return {
        "tensors": tensors,
        "workspaces": noted["requested"] - tensors,
        "internal fragmentation": noted["rounding"] + noted["unsplit"],
        "cached": noted["reserved"] - noted["allocated"],
        "outside the allocator": noted["used"] - noted["reserved"],
    }
