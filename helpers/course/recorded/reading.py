"""What the recorder stored: runs at real sizes, each labelled with hardware, versions and date."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers.course.recorded.clocked import of_one_kind
from helpers.paths import RECORDED, WORK, in_work
from helpers.tools import theory
from helpers.tools.theory.gpt_size import GPTSize

STATES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")
BETWEEN = "between micro-batches"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        arguments: of the experiment's function; `size` by its name.
        configuration: DeepSpeed's, or None.
        foretold: what was expected before the run, in the experiment's own form, or None.
        reports: what each rank returned; empty where the run failed.
        error: why it failed, else "".
        size, elements: of the model, and of each of its parameters, where the experiment has a GPT.
        hardware: of the machine, as "2 x NVIDIA H200"; only runs on the same hardware are put together.
        label: hardware, versions and date, for titles.
        shared: several ranks shared a GPU, so that only bytes of a rank's own say something.
        device_memory: bytes of each GPU.
        device_name: of a GPU, or of the processor.
    """

    experiment: str
    ranks: int
    arguments: dict
    configuration: dict | None
    foretold: object
    reports: tuple
    error: str
    size: GPTSize | None
    elements: tuple
    hardware: str
    label: str
    on_gpu: bool
    shared: bool
    device_memory: int | None
    device_name: str

    @property
    def out_of_memory(self) -> bool:
        return "out of memory" in self.error

    @property
    def known(self) -> dict:
        """By what a run is chosen."""
        return {"ranks": self.ranks, "shared": self.shared, "hardware": self.hardware, **self.arguments}

    @property
    def parameters(self) -> int:
        return sum(self.elements)

    @property
    def device(self) -> str:
        return "cuda" if self.on_gpu else "cpu"

    def states(self, rank: int, moment: str = BETWEEN) -> dict[str, int]:
        """Measured bytes of the model states by category."""
        categories = self.reports[rank]["moments"][moment]["categories"]
        return {category: categories[category] for category in STATES}

    def step_peak(self, rank: int) -> int:
        """Measured: the most bytes that a rank held while its optimizer stepped."""
        return self.reports[rank]["moments"]["after step"]["peak"]

    def predicted_step_peak(self, rank: int) -> int:
        """The same by the exact formula, for the experiment `zero`."""
        return theory.step_peak_bytes(
            self.elements, self.configuration, ranks=self.ranks, rank=rank, device=self.device
        )

    def predicted(self, rank: int, moment: str = BETWEEN) -> dict[str, int]:
        """Bytes by category that the exact formula gives for a rank of the experiments `zero`, `tensor` and
        `pipeline`; a rank of the last two has parameters of its own, and divides their states with nobody."""
        elements, place = self.elements, {"ranks": self.ranks, "rank": rank}
        if self.experiment != "zero":
            elements, place = self.reports[rank]["elements"], {}
        place |= {"moment": moment, "device": self.device}
        exact = theory.deepspeed_bytes(elements, self.configuration, **place)
        return {category: exact[category] for category in STATES}


def read(path: Path) -> Iterator[Run]:
    """The runs of one file."""
    try:
        content = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and record it again") from None
    for run in content["runs"]:
        size, on = run["arguments"].get("size"), run["on"]
        shared = 0 < on["gpus"] < run["ranks"]
        hardware = f"{on['gpus']} x {on['device']}" if on["gpus"] else on["device"]
        sharing = f" shared by {run['ranks']} ranks" if shared else ""
        versions = f"torch {on['versions']['torch']}, DeepSpeed {on['versions']['deepspeed']}"
        yield Run(
            experiment=content["experiment"],
            ranks=run["ranks"],
            arguments=run["arguments"],
            configuration=run.get("configuration"),
            foretold=run.get("predicted"),
            reports=tuple(run.get("reports", ())),
            error=run.get("error", ""),
            size=GPTSize(**content["sizes"][size]) if size else None,
            elements=tuple(math.prod(shape) for shape in content["shapes"][size]) if size else (),
            hardware=hardware,
            label=f"recorded on {hardware}{sharing}, {versions}, {run['date'][:10]}",
            on_gpu=on["gpus"] > 0,
            shared=shared,
            device_memory=on["device_memory"],
            device_name=on["device"],
        )


def runs(experiment: str, **arguments: object) -> list[Run]:
    """The recorded runs of an experiment with these arguments.  `ranks` counts as one of them, and so do
    `shared`, False where times matter, and `hardware`.

    A lesson that is opened from `work/` gets this machine's own recordings where one of them did not fail,
    else the course's.  Runs that failed for another reason than memory are left out.

    Raises:
        LookupError: there is none.
        ValueError: they are of several kinds of hardware, and `hardware` does not say which is meant.
    """
    for folder in (WORK / "recorded", RECORDED) if in_work(WORK) else (RECORDED,):
        stored = [run for path in sorted(folder.glob(f"{experiment}-*.json")) for run in read(path)]
        stored = [run for run in stored if run.reports or run.out_of_memory]
        chosen = [run for run in stored if arguments.items() <= run.known.items()]
        if any(run.reports for run in chosen) or (chosen and folder == RECORDED):
            of_one_kind(chosen)
            return chosen
    raise LookupError(
        f"no recorded run of {experiment!r} with {arguments}: record it with `python -m "
        f"helpers.course.recording.record {experiment}`"
    )


def labels(several: Iterable[Run]) -> str:
    """The labels of several runs, each once and on a line of its own, for a figure's title."""
    return "\n".join(dict.fromkeys(run.label for run in several))


def nccl(ranks: int) -> dict:
    """What NCCL wrote when it set up its channels: {"label": hardware and versions, "runs": {name: {"lines":
    of rank 0's log, ...}}}."""
    files = sorted((RECORDED / "nccl").glob(f"{ranks}-*.json"))
    if not files:
        raise LookupError(f"NCCL's log was not recorded with {ranks} ranks")
    return json.loads(files[0].read_text())
