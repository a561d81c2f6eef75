"""What the recorder stored: runs at real sizes, each labelled with hardware, versions and date, beside what
theory predicts for it."""

# ruff: noqa: F401  lessons take what times say from here

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.course.models import GPTSize
from helpers.course.recording.clocked import (
    case,
    message_seconds,
    of_one_kind,
    pipeline_work,
    step_time,
    timelines,
)
from helpers.paths import RECORDED, WORK
from helpers.tools import theory

STATES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")
TRAININGS = ("zero", "speed", "pipeline")  # experiments whose runs are whole trainings
PEAKS = theory.PEAKS  # FLOPs per second in bf16 by the makers' data sheets
BETWEEN = "between micro-batches"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        arguments: of the experiment's function; `size` by its name.
        configuration: DeepSpeed's, or None.
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
        exact = theory.deepspeed_bytes(
            elements, self.configuration, moment=moment, device=self.device, **place
        )
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

    def known(run):
        return {"ranks": run.ranks, "shared": run.shared, "hardware": run.hardware, **run.arguments}

    for folder in (WORK / "recorded", RECORDED) if Path.cwd() == WORK else (RECORDED,):
        chosen = [
            run
            for path in sorted(folder.glob(f"{experiment}-*.json"))
            for run in read(path)
            if (run.reports or run.out_of_memory) and arguments.items() <= known(run).items()
        ]
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
    of rank 0's log, ...}}}; a LookupError where nothing was recorded with so many ranks."""
    files = sorted((RECORDED / "nccl").glob(f"{ranks}-*.json"))
    if not files:
        raise LookupError(f"NCCL's log was not recorded with {ranks} ranks")
    return json.loads(files[0].read_text())


def machine(ranks: int, **hardware: str) -> theory.MachineConstants:
    """The constants of the machine that `speed` was recorded on, measured while so many ranks did at once."""
    return theory.MachineConstants.from_dict(runs("constants", ranks=ranks, **hardware)[0].reports[0])


def predicted_step(starts: Sequence[Run]) -> theory.StepTime:
    """What `theory.step_seconds` says of a case of `speed`, from the constants of its machine.

    Raises:
        ValueError: for a case that the formulas do not cover (compiled blocks, offload).
        LookupError: where no constants were recorded for so many ranks.
    """
    of_one_kind(starts)
    run = starts[0]
    if run.arguments["compiled"]:
        raise ValueError(
            "theory.step_seconds is of an eager model: there is no prediction for compiled blocks"
        )
    return theory.step_seconds(
        run.size,
        machine(run.ranks, hardware=run.hardware),
        config=run.configuration,
        ranks=run.ranks,
        checkpointing=run.arguments["checkpointing"],
    )


def plan(run: Run) -> theory.Plan:
    """A recorded training of the experiments `zero`, `speed` and `pipeline` as a `theory.Plan`; a ValueError
    for a run of another experiment."""
    if run.experiment not in TRAININGS:
        raise ValueError(f"runs of {', '.join(TRAININGS)} are plans; this run is of {run.experiment!r}")
    config, zero = run.configuration, run.configuration["zero_optimization"]
    micro, times = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    stages = run.ranks if run.experiment == "pipeline" else 1
    return theory.Plan(
        size=run.size,
        gpus=run.ranks,
        batch=run.ranks // stages * micro * times,
        sequence=run.size.context,
        stage=zero["stage"],
        micro=micro,
        checkpointed=run.arguments.get("checkpointing", run.experiment == "zero"),
        pipeline=stages,
        bucket=int(zero.get("reduce_bucket_size", 500_000_000)),
        fused=bool(config["optimizer"]["params"].get("fused")),
        offload="offload_optimizer" in zero,
    )


def trainings(**hardware: str) -> list[Run]:
    """The recorded trainings that are a `plan` without offload, one of the starts of each case, and those too
    that did not fit; `hardware` as `runs` has it."""
    first = {}
    for run in [run for experiment in TRAININGS for run in runs(experiment, **hardware)]:
        if "offload_optimizer" not in run.configuration["zero_optimization"]:
            first.setdefault(case(run), run)
    return list(first.values())


def highest(run: Run) -> int | None:
    """The most bytes that tensors took on a rank of a `plan`'s run, in a whole step; None where it did not
    fit."""
    if run.experiment == "speed":
        peaks = [report["peak"] for report in run.reports]
    else:
        peaks = [noted["peak"] for report in run.reports for noted in report["moments"].values()]
    return max(peaks, default=None)


def predicted_peaks(run: Run) -> dict[str, int]:
    """Bytes of a run of `speed` at the moments that compete for the peak of a whole step, on rank 0: {moment:
    bytes}; a ValueError for a run of another experiment.

    Adds up, for fused Adam at stage 0 as in these runs: states without gradients (with those of the
    micro-batch before, if there was one), what is kept and 8 bytes per logit; states with gradients, one
    input and one block that runs again (the first block; where activations are all kept there is no such
    moment); and `theory.step_peak_bytes`.
    """
    if run.experiment != "speed":
        raise ValueError(
            f"these moments are those of the experiment 'speed'; this run is of {run.experiment!r}"
        )
    checkpointing, sequences, size = run.arguments["checkpointing"], run.arguments["sequences"], run.size
    shape, job = (sequences, size.context, size.width), {"ranks": run.ranks, "device": run.device}
    after_step, between = (
        theory.deepspeed_bytes(run.elements, run.configuration, moment=moment, **job)
        for moment in ("after step", BETWEEN)
    )
    formula = theory.checkpointed_activation_bytes if checkpointing else theory.gpt_activation_bytes
    logits = 8 * sequences * size.context * size.vocabulary
    block = theory.repeated_block_bytes(*shape, size.heads, 2, device=run.device)
    step = theory.step_peak_bytes(run.elements, run.configuration, **job)
    if run.arguments["stage"] == 0:
        step -= 4 * run.parameters  # the fused Adam makes no square roots
    moments = theory.peak_moments(
        {"after step": after_step, BETWEEN: between, "after backward": between},
        activations=formula(size, sequences, size.context, 2, device=run.device) + logits,
        again=2 * math.prod(shape) + block if checkpointing else None,
        step={"other": step},
        accumulates=run.arguments["micro_batches"] > 1,
    )
    names = {"loss": "at the loss", "backward": "in a block", "step": "in the step"}
    return {names[moment]: sum(sizes.values()) for moment, sizes in moments.items()}


def peak_rows(cases: Iterable[dict]) -> dict[str, dict[str, float | None]]:
    """Of cases of `speed`, dictionaries of its arguments: {name: {moment: GB}} on rank 0, as rows of a table.

    The moments are those of `predicted_peaks`, None where there is no such (left out where no case has it);
    "recorded" is the peak, "more" what it has beyond the largest moment.
    """
    rows = {}
    for wanted in cases:
        run = runs("speed", **wanted)[0]
        moments, peak, of = predicted_peaks(run), run.reports[0]["peak"], run.arguments
        size = of["size"].removesuffix(", padded").replace("1.5B", "XL")
        name = f"{size}, ZeRO-{of['stage']}, N = {run.ranks}, {of['micro_batches']} x {of['sequences']}"
        name += ", checkpointed" if of["checkpointing"] else ""
        rows[name] = moments | {"recorded": peak, "more": peak - max(moments.values())}
    names = ("at the loss", "in a block", "in the step", "recorded", "more")
    names = [name for name in names if any(name in row for row in rows.values())]
    return {
        case: {name: row[name] / 1e9 if name in row else None for name in names} for case, row in rows.items()
    }


def step_peak_clusters(several: Iterable[Run], rank: int = 0) -> dict[str, dict[str, dict[str, int] | None]]:
    """For `plots.memory_bars`: the peak of an optimizer step of runs of `zero`, by the exact formula and
    recorded.

    Returns:
        {case: {"formula", "recorded": {category: bytes}}}: what lasts through the step by category, and as
        "other" the step's temporaries; a recorded bar is None where the run did not fit.  Where ranks shared
        GPUs the case says so: a GPU then held several such bars.
    """
    clusters = {}
    for run in several:
        stage = run.arguments["stage"]
        moment = "after step" if stage else "after backward"  # stage 0 keeps its gradients
        bars = {"formula": (run.predicted(rank, moment), run.predicted_step_peak(rank)), "recorded": None}
        if not run.error:
            bars["recorded"] = run.states(rank, moment), run.step_peak(rank)
        shared = " (shared)" if run.shared else ""
        clusters[f"stage {stage}, {run.ranks} ranks{shared}"] = {
            name: bar and bar[0] | {"other": bar[1] - sum(bar[0].values())} for name, bar in bars.items()
        }
    return clusters


def device_parts(run: Run, rank: int = 0, moment: str = BETWEEN) -> dict[str, int]:
    """Where the bytes of a rank's GPU are: {part: bytes}, from the ledger's tensors to all that the driver
    has given away, their sum."""
    if run.shared or not run.on_gpu:
        raise ValueError(
            f"the bytes of a whole GPU are known where a rank has one of its own; this run: {run.label}"
        )
    noted = run.reports[rank]["moments"][moment]
    tensors = sum(noted["categories"].values())
    return {
        "tensors": tensors,
        "workspaces": noted["requested"] - tensors,
        "internal fragmentation": noted["rounding"] + noted["unsplit"],
        "cached": noted["reserved"] - noted["allocated"],
        "outside the allocator": noted["used"] - noted["reserved"],
    }


def beside_tensors(run: Run) -> int:
    """Bytes of a rank's GPU that the driver had given away and that were neither tensors nor kept by torch
    for the next ones (`device_parts`)."""
    return sum(size for part, size in device_parts(run).items() if part not in ("tensors", "cached"))
