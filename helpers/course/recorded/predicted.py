"""What theory predicts for recorded runs, and the plans that they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from helpers.course.recorded.clocked import case, message_seconds, of_one_kind
from helpers.course.recorded.held import predicted_peaks
from helpers.course.recorded.reading import Run, runs
from helpers.tools import theory

TRAININGS = ("zero", "speed", "pipeline")  # experiments whose runs are whole trainings


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
        raise ValueError("theory.step_seconds is of an eager model: no prediction for compiled blocks")
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
        lean=bool(config["optimizer"]["params"].get("fused")),
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


def peak_rows(cases: Iterable[dict]) -> dict[str, dict[str, float | None]]:
    """Of cases of `speed`, dictionaries of its arguments: {name: {moment: GB}} on rank 0, as rows of a table.

    The moments are those of `predicted_peaks`, None where a case has no such; "recorded" is the peak, "more"
    what it has beyond the largest moment.
    """
    rows = {}
    for wanted in cases:
        run = runs("speed", **wanted)[0]
        moments, peak, of = predicted_peaks(run), run.reports[0]["peak"], run.arguments
        size = of["size"].removesuffix(", padded").replace("1.5B", "XL")
        name = f"{size}, ZeRO-{of['stage']}, N = {run.ranks}, {of['micro_batches']} x {of['sequences']}"
        name += ", checkpointed" if of["checkpointing"] else ""
        rows[name] = moments | {"recorded": peak, "more": peak - max(moments.values())}
    order = ("at the loss", "in a block", "in the step", "recorded", "more")
    columns = [name for name in order if any(name in row for row in rows.values())]
    for title, row in rows.items():
        rows[title] = {name: row[name] / 1e9 if name in row else None for name in columns}
    return rows


def stage_0(link: str) -> tuple[int, float]:
    """Of a recorded training by DeepSpeed's stage 0 on two GPUs with one micro-batch a step: bytes of the
    gradients in bf16, and seconds of a step in which messages were under way."""
    chosen = runs("links", ranks=2, link=link, stage=0, micro_batches=1)
    return 2 * chosen[0].parameters, message_seconds(chosen)[0]
