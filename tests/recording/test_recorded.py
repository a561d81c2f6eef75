"""Recorded runs: whole, small, and what theory predicts for them; and the recorder itself, on the CPU."""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from helpers import models, recorded, theory
from helpers.course.recorded import reading
from helpers.course.recording import experiments, record, speed, table
from helpers.course.recording.experiment import LIMIT, grid
from helpers.course.recording.finetune import FINE_TUNING
from helpers.paths import RECORDED, ROOT
from helpers.paths import replace as replace_file
from helpers.tools.theory import schedules

FILES = sorted(RECORDED.glob("*.json"))
RUNS = [run for path in FILES for run in recorded.read(path)]
WITH_STATES = [run for run in RUNS if run.experiment in ("zero", "tensor", "pipeline") and not run.error]
TRAININGS = recorded.trainings()
NEEDED = {"ranks", "arguments", "on", "command", "commit", "date"}


PLACES = (  # where the experiments lay, earlier and now
    "helpers/experiments.py",
    "helpers/recording/experiments.py",
    "helpers/course/recording/experiments.py",
)


def named(run):
    return "-".join(
        [
            run.experiment,
            str(run.ranks),
            *(str(value) for value in run.arguments.values() if not isinstance(value, list)),
        ]
    )


def over(things, name=named):
    """Make a check of one thing a test of all of them, which names those that fail."""

    def make(check):
        def test():
            failures = {}
            for thing in things:
                try:
                    check(thing)
                except AssertionError as error:
                    failures[name(thing)] = str(error)
            assert things and not failures, "\n".join(f"{thing}: {said}" for thing, said in failures.items())

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return make


def stem(path):
    return path.stem


def write(path, content):
    replace_file(path, json.dumps(content))


def test_they_are_small():
    assert FILES and sum(path.stat().st_size for path in FILES) < 1_250_000


@over(FILES, stem)
def test_a_file_says_what_was_run_on_what(path):
    found = json.loads(path.read_text())
    for name, size in found["sizes"].items():
        assert found["shapes"][name] == record.shapes(models.GPTSize(**size))
    experiment = table.EXPERIMENTS[found["experiment"]]
    for run in found["runs"]:
        assert set(run) >= NEEDED and ("reports" in run) != ("error" in run)
        assert (run["ranks"], run["arguments"]) in experiment.runs
        on_cpu, may_share = experiment.needs_cpu, experiment.may_share
        assert run["on"]["gpus"] == 0 if on_cpu else run["on"]["gpus"] >= run["ranks"] or may_share
        assert run["configuration"] == experiment.configuration(run["ranks"], **run["arguments"])
        assert {"python", "torch", "deepspeed", *(() if on_cpu else ("cuda", "nccl"))} <= set(
            run["on"]["versions"]
        )
        assert not on_cpu or not any(place in json.dumps(run) for place in (str(ROOT), '"/', " /", "/tmp"))


@over([run for run in RUNS if run.experiment == "longest_sequence"])
def test_the_longest_sequence_lies_between_one_that_fitted_and_one_that_did_not(run):
    for report in run.reports:
        assert report["tried"][-1]["tokens"] < report["failed"] and "out of memory" in report["words"]
        assert all(0 < tried["peak"] < run.arguments["limit"] for tried in report["tried"])
    assert len({report["failed"] for report in run.reports}) == 1


SPEED = [run for run in RUNS if run.experiment == "speed"]


@over(SPEED)
def test_steps_were_timed_by_the_protocol(run):
    for report in run.reports:
        assert len(report["seconds"]) == speed.STEPS and min(report["seconds"]) > 0
        busy = report["busy"]
        assert 0 <= busy["exposed"] <= busy["messages"] <= busy["gpu"] and busy["kernels"] > 1000
        assert (busy["messages"] > 0) == (run.ranks > 1)


def test_speeds_were_recorded_in_two_launches():
    cases = [
        (run.ranks, {name: value for name, value in run.arguments.items() if name != "start"})
        for run in SPEED
    ]
    assert not [case for case in cases if cases.count(case) != 2]


def by_case(found):
    """{case, without its start: its runs}."""
    cases = {}
    for run in found:
        rest = tuple(
            (name, value) for name, value in run.arguments.items() if name not in ("start", "compiled")
        )
        cases.setdefault((run.ranks, *rest), []).append(run)
    return cases


COVERED = by_case(
    [run for run in SPEED if run.arguments["change"] not in ("compiled", "offload")]
)  # by `theory.step_seconds`


@over(COVERED, str)
def test_a_recorded_step_is_predicted_within_a_quarter_or_recognised_as_launch_bound(case):
    """From the constants that the same machine measured in ten seconds; nothing is fitted to a recorded
    step."""
    found, predicted = recorded.step_time(COVERED[case]), recorded.predicted_step(COVERED[case])
    assert predicted.launch_bound == found.launch_bound
    assert found.launch_bound or predicted.total == pytest.approx(found.median, rel=0.25)


PEAKED = [
    case
    for case in COVERED
    if COVERED[case][0].arguments["stage"] < 3 and COVERED[case][0].arguments["change"] == ""
]


@over(PEAKED, str)
def test_a_recorded_peak_is_the_largest_predicted_moment_within_one_percent(case):
    """Of stages 0 to 2, and the moments compete: at the loss, and in the step where there is little text or
    much checkpointing."""
    run = COVERED[case][0]
    assert run.reports[0]["peak"] == pytest.approx(max(recorded.predicted_peaks(run).values()), rel=0.01)


def test_moments_are_predicted_for_steps_by_the_clock_alone():
    with pytest.raises(ValueError, match="of the experiment 'speed'"):
        recorded.predicted_peaks(recorded.runs("zero", stage=0, ranks=1)[0])


def test_what_the_formulas_do_not_cover_is_said():
    with pytest.raises(ValueError, match="no prediction for compiled blocks"):
        recorded.predicted_step([run for run in SPEED if run.arguments["compiled"]])


def test_a_recording_under_the_ledger_holds_no_time():
    """Its two steps were too few to be published; those of `speed` have a protocol."""
    assert not [
        run for run in RUNS if run.experiment == "zero" for report in run.reports if "seconds" in report
    ]


def speed_of(seconds, busy, ranks=1, **arguments):
    """A run of `speed` with one report per list of seconds."""
    reports = tuple(
        {"seconds": steps, "busy": {"kernels": 1000 + index, **busy}} for index, steps in enumerate(seconds)
    )
    arguments = {**SPEED[0].arguments, "sequences": 2, "micro_batches": 3, **arguments}
    return replace(
        SPEED[0], reports=reports, ranks=ranks, arguments=arguments, device_name="NVIDIA H200", error=""
    )


BUSY = {"gpu": 0.5, "messages": 0.2, "exposed": 0.1}


def test_a_recorded_step_is_the_median_of_all_steps_of_all_ranks_and_starts():
    """Two starts on two ranks, by hand: 2 sequences x 3 micro-batches x 1,024 tokens x 2 ranks in half a
    second."""
    starts = [
        speed_of([[0.4, 0.5], [0.5, 0.5]], BUSY, 2, start=1),
        speed_of([[0.6, 0.5], [0.5, 0.7]], {**BUSY, "messages": 0.15}, 2, start=2),
    ]
    time = recorded.step_time(starts)
    assert (time.median, time.lowest, time.highest) == (0.5, 0.4, 0.7)
    assert (time.work, time.messages, time.exposed, time.kernels) == (0.4, 0.15, 0.1, 1001)
    assert time.tokens_per_second == pytest.approx(2 * 3 * 1024 * 2 / 0.5)
    assert time.mfu == pytest.approx(24576 * theory.flops_per_token(SPEED[0].size, 1024) / (2 * 989e12))
    assert sum(time.parts.values()) == pytest.approx(time.median) and time.parts["waiting"] == pytest.approx(
        0
    )
    assert recorded.step_time([replace(run, device_name="another GPU") for run in starts]).mfu is None


def test_steps_are_launch_bound_where_a_gpu_works_less_than_eight_tenths_of_them():
    """0.4 s of work: in half a second it is 0.8, which counts as enough."""
    enough, too_little = (
        recorded.step_time([speed_of([[seconds]], {"gpu": 0.4, "messages": 0, "exposed": 0})])
        for seconds in (0.5, 0.51)
    )
    assert not enough.launch_bound and "MFU" in str(enough)
    assert (
        too_little.launch_bound
        and str(too_little).endswith("launch-bound")
        and "tokens" not in str(too_little)
    )


def test_steps_that_wait_for_messages_are_not_launch_bound():
    found = recorded.step_time([speed_of([[0.5]], {"gpu": 0.45, "messages": 0.2, "exposed": 0.15}, 2)])
    assert found.work_share < 0.8 and not found.launch_bound


def test_a_case_takes_longer_only_where_no_two_steps_overlap_and_none_is_launch_bound():
    short, overlapping, long, launch_bound = (
        recorded.step_time([speed_of([steps], BUSY)])
        for steps in ([0.40, 0.42], [0.42, 0.45], [0.46, 0.47], [0.8, 0.9])
    )
    assert long.takes_longer_than(short) and not short.takes_longer_than(long)
    assert not overlapping.takes_longer_than(short) and not launch_bound.takes_longer_than(short)


def test_steps_of_different_cases_or_without_a_clock_are_refused():
    with pytest.raises(ValueError, match="these runs are of 2"):
        recorded.step_time([speed_of([[1.0]], BUSY, stage=1), speed_of([[1.0]], BUSY, stage=2)])
    with pytest.raises(ValueError, match="one case of the experiment 'speed'"):
        recorded.step_time(WITH_STATES[:1])
    with pytest.raises(ValueError, match="a GPU of its own"):
        recorded.step_time([replace(SPEED[0], shared=True)])


@over(sorted({(run.ranks, run.arguments["stage"]) for run in SPEED}), str)
def test_recorded_steps_add_up(case):
    found = [run for run in SPEED if (run.ranks, run.arguments["stage"]) == case]
    for run in found:
        time = recorded.step_time([run])
        assert (
            time.lowest <= time.median <= time.highest
            and 0 < time.work < time.highest
            and 0 <= time.exposed <= time.messages
        )
        assert 0 < time.mfu < 1


def in_history(thing):
    return (
        subprocess.run(
            ["git", "-C", ROOT, "cat-file", "-e", thing], capture_output=True, timeout=60
        ).returncode
        == 0
    )


@over(FILES, stem)
def test_the_commit_it_names_has_the_recorder(path):
    for commit in {run["commit"] for run in json.loads(path.read_text())["runs"]}:
        if not in_history(commit):
            pytest.skip("this copy has no history")
        assert any(in_history(f"{commit}:{place}") for place in PLACES)


@over(RUNS)
def test_every_rank_reported(run):
    assert bool(run.error) != (len(run.reports) == run.ranks)
    assert not run.error or run.out_of_memory


@over(WITH_STATES)
def test_states_are_those_predicted_to_the_byte(run):
    for rank, report in enumerate(run.reports):
        for moment, found in report["moments"].items():
            assert found["settled"]
            assert run.states(rank, moment) == run.predicted(rank, moment)


@over([run for run in WITH_STATES if run.experiment == "zero"])
def test_the_steps_peak_is_that_predicted_to_the_byte(run):
    assert [run.step_peak(rank) for rank in range(run.ranks)] == [
        run.predicted_step_peak(rank) for rank in range(run.ranks)
    ]


def test_what_does_not_fit_was_predicted_not_to_fit():
    failed = [run for run in RUNS if run.error and run.experiment == "zero"]
    assert failed and all(
        run.out_of_memory and run.predicted_step_peak(0) > run.device_memory for run in failed
    )


@over(WITH_STATES)
def test_every_byte_of_the_gpu_is_explained(run):
    """Torch was asked for the ledger's bytes, for workspaces of matrix products (whole MiB), and for one byte
    of NCCL's barrier; its blocks are larger by rounding (less than 512 bytes each) and by ends that are not
    split off (1 MiB at most)."""
    for report in run.reports:
        for found in report["moments"].values():
            assert found["requested"] - found["workspaces"] - sum(found["categories"].values()) == 1
            assert found["workspaces"] % 2**20 == 0
            assert (
                found["requested"] + found["rounding"] + found["unsplit"]
                == found["allocated"]
                <= found["reserved"]
                <= found["used"]
            )
            assert found["largest_unsplit"] <= 2**20


@over([run for run in WITH_STATES if run.experiment == "zero" and not run.shared])
def test_outside_the_allocator_are_a_context_and_communicators(run):
    """One communicator at stage 3, two below, each as large as in `outside_allocator`; and at most 300 MiB
    more (kernels, connections)."""
    first, *_, last, second = (
        recorded.runs("outside_allocator", ranks=run.ranks, buffer=table.NCCL_BUFFERS[0])[0]
        .reports[0]
        .values()
    )
    communicators = last + (0 if run.arguments["stage"] == 3 else second - last)
    for report in run.reports:
        for found in report["moments"].values():
            assert first < communicators <= found["used"] - found["reserved"] <= communicators + 300 * 2**20


def test_the_parts_of_a_gpu_are_all_it_gave_away():
    run = recorded.runs("zero", ranks=2, stage=1)[0]
    assert (
        sum(recorded.device_parts(run).values()) == run.reports[0]["moments"]["between micro-batches"]["used"]
    )
    shared = next(run for run in RUNS if run.shared)
    with pytest.raises(
        ValueError,
        match="where a rank has one of its own; this run: recorded on 2 x NVIDIA H200 shared by . ranks",
    ):
        recorded.device_parts(shared)


def test_communicators_hold_whole_buffers():
    small, large = (run.reports[0] for run in recorded.runs("outside_allocator", ranks=2))
    for doing in ("communicator", "second communicator"):
        grown, buffer = large[doing] - small[doing], table.NCCL_BUFFERS[1] - table.NCCL_BUFFERS[0]
        assert grown > 0 and grown % buffer == 0


def test_tensor_parallel_activations_are_those_predicted():
    for run in recorded.runs("tensor"):
        expected = theory.tensor_parallel_activation_bytes(
            run.size, 1, run.size.context, 2, run.ranks, run.device
        )
        assert all(report["activations"] == expected for report in run.reports)


def test_activations_are_those_predicted():
    for run in recorded.runs("activations"):
        formula = (
            theory.checkpointed_activation_bytes
            if run.arguments["checkpointing"]
            else theory.gpt_activation_bytes
        )
        assert run.reports[0]["kept"] == formula(run.size, 1, run.size.context, 2, device=run.device)


@over([1, 4], str)
def test_bytes_at_the_loss_are_those_of_the_exact_moment(micro_batches):
    case = {
        "size": "1.5B, padded",
        "stage": 0,
        "sequences": 16,
        "micro_batches": micro_batches,
        "checkpointing": False,
        "change": "",
    }
    run = recorded.runs("speed", **case)[0]
    simple = theory.bytes_at_the_loss(run.size, 16, run.size.context, accumulates=micro_batches > 1)
    assert recorded.predicted_peaks(run)["at the loss"] == sum(simple.values())


def test_a_pipelines_work_is_held_against_what_its_gaps_leave():
    def run(work):
        rows = [[["F", 0.0, 0.2], ["B", 0.4, 0.8]], [["F", 0.2, 0.3], ["B", 0.3, 0.4]]]
        busy = {"kernels": 9, "gpu": work + 0.1, "messages": 0.1, "exposed": 0.1}
        reports = tuple({"seconds": [0.9, 1.0, 1.1], "busy": busy, "timeline": row} for row in rows)
        return replace(recorded.runs("pipeline", ranks=2)[0], reports=reports)

    found = recorded.pipeline_work(run(0.4))
    assert (found.share, found.most) == (
        pytest.approx(0.4),
        pytest.approx(0.6),
    )  # of a second: gaps of 0.2 and 0.6
    assert found.launch_bound and not recorded.pipeline_work(run(0.5)).launch_bound
    with pytest.raises(ValueError, match="busy share"):
        recorded.pipeline_work(recorded.runs("zero")[0])


def test_of_the_recorded_pipelines_the_smaller_one_is_launch_bound():
    bound = {
        run.arguments["size"]: recorded.pipeline_work(run).launch_bound
        for run in recorded.runs("pipeline", ranks=2)
    }
    assert bound == {"1.5B": True, "7.5B": False}


ROTARY = 256  # bytes of ChatGLM's table of positions
CASE = {
    kind: [count for _ in range(28) for count in counts]
    for kind, counts in {  # elements of ChatGLM3-6B's parameters, in no order
        "frozen": (
            4096 * 4096,
            4096,
            256 * 4096,
            256,
            256 * 4096,
            256,
            4096 * 4096,
            2 * 13696 * 4096,
            13696 * 4096,
            4096,
            4096,
        ),
        "trained": 2 * (8 * 4096, 8 * 4096) + 2 * (8 * 4096, 8 * 256),
    }.items()
}
CASE["frozen"] += [65024 * 4096, 65024 * 4096, 4096]


def fine_tuning(case, limited=False):
    return recorded.runs("finetune", shape="6.2B", case=case, limit=LIMIT if limited else None)[0]


@over([run for run in RUNS if run.experiment == "finetune" and run.reports])
def test_states_with_frozen_weights_are_those_predicted(run):
    """To the byte, offloaded or not; peft's fp32 adapters take two bytes more for each element that a rank
    holds at stage 3."""
    way = FINE_TUNING[run.arguments["case"]]
    for rank, report in enumerate(run.reports):
        where = {"ranks": run.ranks, "rank": rank, "moment": "after step"}
        held = (
            sum(report["held"]["after step"]["categories"].values())
            - report["held"]["after step"]["categories"]["inputs"]
            - ROTARY
        )
        if way.offload:
            places = theory.offload_bytes(
                CASE["trained"], run.configuration, frozen=CASE["frozen"], accumulates=False, **where
            )
            assert held + sum(report["host"].values()) == sum(
                sum(kinds.values()) for kinds in places.values()
            )
        else:
            more = 3 * sum(CASE["trained"]) if way.stage == 3 and way.fp32_adapters else 0
            assert held - more == sum(
                theory.fine_tuning_bytes(**CASE, config=run.configuration, device="cuda", **where).values()
            )


@over(["disk", "disk, sub-groups under 1 MiB"], str)
def test_memory_and_files_of_an_optimizer_on_a_disk_are_those_predicted(place):
    run = recorded.runs("nvme", place=place)[0]
    for rank, report in enumerate(run.reports):
        in_memory, files = theory.disk_bytes(run.elements, run.configuration, ranks=2, rank=rank)
        assert sum(report["held"].values()) == sum(in_memory.values())
        assert sorted(size for _, size in report["files"]) == files and (len(files) == 6 or place != "disk")


def test_offload_changes_no_loss_and_without_it_memory_holds_what_is_predicted():
    plain, host, disk = (recorded.runs("nvme", place=place)[0] for place in ("device", "host", "disk"))
    for rank, (one, other, third) in enumerate(zip(plain.reports, host.reports, disk.reports)):
        exact = theory.deepspeed_bytes(
            plain.elements, plain.configuration, ranks=2, rank=rank, moment="after step"
        )
        assert one["losses"] == other["losses"] == third["losses"] and sum(one["held"].values()) == sum(
            exact.values()
        )
        places = theory.offload_bytes(
            host.elements, host.configuration, ranks=2, rank=rank, moment="after step", accumulates=False
        )
        gradients = 2 * sum(
            -(-count // 2) for count in plain.elements
        )  # as they come: on this rank's device, which is a CPU, in any case
        assert (
            sum(other["held"].values()) == sum(sum(kinds.values()) for kinds in places.values())
            and other["held"]["gradients"] == gradients
        )


def test_what_goes_wrong_with_a_disk():
    """Stage 2 writes no file, parameters too small to be written cost buffers all the same, and pipelined
    reading dies."""
    small, second, pipelined, parameters, disk = (
        recorded.runs("nvme", place=place)[0]
        for place in (
            "disk, sub-groups under 1 MiB",
            "disk, stage 2",
            "disk, pipelined",
            "disk, parameters too",
            "disk",
        )
    )
    for rank, report in enumerate(second.reports):
        places = theory.offload_bytes(
            second.elements, second.configuration, ranks=2, rank=rank, moment="after step", accumulates=False
        )
        assert report["files"] == [] and sum(report["held"].values()) == sum(
            sum(kinds.values()) for kinds in places.values()
        )
    assert all(report["held"]["master weights"] > 0 for report in small.reports)
    assert all(report["raised"].startswith("AssertionError") for report in pipelined.reports)
    for one, other in zip(parameters.reports, disk.reports):
        assert one["files"] == other["files"] and sum(one["held"].values()) > sum(other["held"].values())


SHARED = {
    64: 64 * 64,
    32: 32 * 64,
    192: 192 * 64,
}  # elements of the tiny ChatGLM's matrices, by their outputs or inputs
TINY_MATRICES = 2 * [SHARED[64], SHARED[32], SHARED[32], SHARED[64], 2 * SHARED[192], SHARED[192]]
TINY_FROZEN = [
    256 * 64,
    *2 * [64, 32, 32, 64, 64],
    64,
    256 * 64,
]  # embedding; three biases and two norms of a block; norm; head
TINY_TRAINED = 2 * [8 * 64, 64 * 8, 8 * 64, 32 * 8, 8 * 64, 32 * 8, 8 * 64, 64 * 8]


@over([run for run in RUNS if run.experiment == "qlora"])
def test_weights_of_four_bits_take_what_is_predicted(run):
    """0 bytes off, beside 32 of rotary positions; where bitsandbytes has packed three matrices for its own
    kernel, their scales are in bf16."""
    four = run.arguments["bits"] == 4
    for rank, report in enumerate(run.reports):
        where = {"ranks": 2, "rank": rank, "moment": "after step"}
        states = theory.fine_tuning_bytes(
            TINY_FROZEN + ([] if four else TINY_MATRICES), TINY_TRAINED, run.configuration, **where
        )
        quantised = theory.quantised_bytes(TINY_MATRICES if four else [], run.configuration, ranks=2)
        packed = 2 * (SHARED[64] + 2 * SHARED[32]) // 64 if report["packed"] else 0
        assert sum(report["held"].values()) == sum(states.values()) + sum(quantised.values()) + 32 - packed
        assert report["packed"] == (0 if run.arguments["train"] else 3)


def test_four_bits_are_silently_wrong_at_stage_3_in_evaluation_mode():
    """The second loss on, and with `engine.train()` not."""

    def losses(**arguments):
        return recorded.runs("qlora", **arguments)[0].reports[0]["losses"]

    right = losses(bits=4, stage=2, train=True)
    for alike in (losses(bits=4, stage=3, train=True), losses(bits=4, stage=2, train=False)):
        assert alike == pytest.approx(right, abs=1e-3)
    wrong = losses(bits=4, stage=3, train=False)
    assert wrong[0] == pytest.approx(right[0], abs=1e-3) and abs(wrong[1] - right[1]) > 0.02


def test_what_does_not_fit_into_24_gb_needs_more_and_the_rest_does_not():
    for case, way in FINE_TUNING.items():
        limited = fine_tuning(case, limited=True)
        assert limited.out_of_memory != way.fits
        peak = max(
            moment["peak"]
            for moment in (limited if way.fits else fine_tuning(case)).reports[0]["held"].values()
        )
        assert (peak < LIMIT) == way.fits


def test_the_offload_error_is_there_without_its_mend_alone():
    raised = {run.arguments["mended"]: run.reports[0]["raised"] for run in recorded.runs("offload_error")}
    assert raised[True] == "" and "two devices, cuda:0 and cpu" in raised[False]


def test_construction_is_as_predicted():
    for run in recorded.runs("construction"):
        dtype, partitioned = table.CONSTRUCTIONS[run.arguments["how"]], run.arguments["how"] == "partitioned"
        for report in run.reports:
            assert report["peak"] == theory.construction_peak_bytes(
                models.module_sizes(run.size), run.ranks, dtype, partitioned
            )
            assert 1 <= len(report["seconds"]) <= experiments.BUILDS and min(report["seconds"]) > 0


def check_timeline(run):
    """Times are in milliseconds from the first start; a rank does one thing after another, and a micro-batch
    goes from stage to stage."""
    timelines, count = recorded.timelines(run), run.arguments["micro_batches"]
    assert [[event[:3] for event in timeline] for timeline in timelines] == schedules.deepspeed_orders(
        run.ranks, count
    )
    assert min(start for timeline in timelines for *_, start, _ in timeline) == 0
    ended = {event[:3]: event[4] for timeline in timelines for event in timeline}
    for report, timeline in zip(run.reports, timelines):
        assert len(report["seconds"]) == experiments.PIPELINE_STEPS >= 3
        assert all(end <= start for (*_, end), (*_, start, _) in zip(timeline, timeline[1:]))
        span = timeline[-1][4] - timeline[0][3]
        assert span == pytest.approx(1e3 * (report["timeline"][-1][2] - report["timeline"][0][1]))
        assert any(
            span <= 1e3 * seconds + 0.01 for seconds in report["seconds"]
        )  # within a step, rounding apart
        assert all(
            start >= ended["F", stage - 1, micro]
            for kind, stage, micro, start, _ in timeline
            if kind == "F" and stage
        )
    assert 0 < schedules.idle_fraction(timelines) < 1


def test_a_recorded_timeline_is_deepspeeds_schedule_by_the_clock():
    """Of steps without a ledger, which says how long each took; a recording from before there were such has
    none."""
    for run in recorded.runs("pipeline"):
        if "seconds" in run.reports[0]:
            check_timeline(run)
        else:
            assert not any("timeline" in report for report in run.reports)


def test_a_run_that_nobody_recorded_is_named():
    with pytest.raises(LookupError, match="helpers.course.recording.record zero"):
        recorded.runs("zero", ranks=64)


def test_a_log_of_nccl_that_was_not_recorded():
    with pytest.raises(LookupError, match="not recorded with 1 ranks"):
        recorded.nccl(ranks=1)


def other(run, **changes):
    return replace(run, **changes)


def test_runs_of_several_gpus_are_kept_apart(tmp_path, monkeypatch):
    """A second type of GPU, and a machine with more of the first, whose files lie beside the course's."""
    for file in RECORDED.glob("*-NVIDIA-H200.json"):
        content = json.loads(file.read_text())
        write(tmp_path / file.name, content)
        for gpus, device, name in ((2, "NVIDIA A100", "2-NVIDIA-A100"), (8, "NVIDIA H200", "8-NVIDIA-H200")):
            for run in content["runs"]:
                run["on"] |= {"gpus": gpus, "device": device}
            write(tmp_path / file.name.replace("2-NVIDIA-H200", name), content)
    monkeypatch.setattr(reading, "RECORDED", tmp_path)
    for ask in (
        lambda: recorded.runs("speed", stage=1),
        lambda: recorded.machine(2),
        lambda: recorded.trainings(),
        lambda: recorded.peak_rows([{"stage": 1}]),
    ):
        with pytest.raises(
            ValueError, match="2 x NVIDIA A100, 2 x NVIDIA H200, 8 x NVIDIA H200.*: say which"
        ):
            ask()
    ask = {"ranks": 2, "size": "1.5B, padded", "stage": 1, "sequences": 16, "micro_batches": 1, "change": ""}
    of_one = recorded.runs("speed", hardware="2 x NVIDIA H200", checkpointing=False, **ask)
    assert len(of_one) == 2 and {run.hardware for run in of_one} == {"2 x NVIDIA H200"}
    assert recorded.predicted_step(of_one).total > 0  # from constants of the same hardware
    assert len(recorded.trainings(hardware="8 x NVIDIA H200")) == len(TRAININGS)


def test_one_median_is_of_one_kind_of_machine():
    first, second = speed_of([[0.4]], BUSY), speed_of([[0.5]], BUSY)
    for changed in (
        other(second, hardware="2 x NVIDIA A100", device_name="NVIDIA A100"),
        other(second, hardware="8 x NVIDIA H200"),
    ):
        for ask in (recorded.step_time, recorded.message_seconds, recorded.predicted_step):
            with pytest.raises(
                ValueError, match="2 x NVIDIA H200, . x NVIDIA|2 x NVIDIA A100, 2 x NVIDIA H200"
            ):
                ask([first, changed])
    assert recorded.step_time([first, second]).median == pytest.approx(0.45)


def test_lessons_in_work_show_ones_own_runs_where_there_are_any(tmp_path, monkeypatch):
    stored = next(RECORDED.glob("bandwidth-*.json"))
    write(tmp_path / "recorded" / stored.name, json.loads(stored.read_text().replace("H200", "H300")))
    monkeypatch.setattr(reading, "WORK", tmp_path)
    assert "H200" in recorded.runs("bandwidth")[0].label
    monkeypatch.chdir(tmp_path)
    assert "H300" in recorded.runs("bandwidth")[0].label
    assert "H200" in recorded.runs("zero", stage=3)[0].label
    (tmp_path / "more").mkdir()
    monkeypatch.chdir(tmp_path / "more")  # where companions are
    assert "H300" in recorded.runs("bandwidth")[0].label


def test_own_runs_that_failed_are_not_shown(tmp_path, monkeypatch):
    failed = json.loads(next(RECORDED.glob("bandwidth-*.json")).read_text())
    for run in failed["runs"]:
        del run["reports"]
        run["error"] = "CUDA out of memory"
    write(tmp_path / "recorded" / "bandwidth-1-X.json", failed)
    monkeypatch.setattr(reading, "WORK", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert recorded.runs("bandwidth")[0].reports


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "zero-1-X.json").write_text("{")
    with pytest.raises(ValueError, match="zero-1-X.json is damaged"):
        list(recorded.read(tmp_path / "zero-1-X.json"))


def out_of_memory_on_the_last(size):
    import deepspeed

    deepspeed.init_distributed()
    if deepspeed.comm.get_rank() == 1:
        raise torch.OutOfMemoryError("CUDA out of memory")
    deepspeed.comm.barrier()


@pytest.mark.ranks
def test_a_rank_out_of_memory_is_noted(monkeypatch):
    monkeypatch.setitem(
        table.EXPERIMENTS, "tensor", replace(table.EXPERIMENTS["tensor"], function=out_of_memory_on_the_last)
    )
    assert "out of memory" in record.run("tensor", 2, {"size": "tiny"}, "cpu")["error"]


def short(monkeypatch, messages):
    """Few messages for the experiment `bandwidth`."""
    few = replace(table.EXPERIMENTS["bandwidth"], runs=grid([2], message_bytes=[messages]))
    monkeypatch.setitem(table.EXPERIMENTS, "bandwidth", few)


@pytest.mark.ranks
def test_a_run_that_is_recorded_again_replaces_the_one_before(tmp_path, monkeypatch):
    short(monkeypatch, [1024])
    paths = {record.record("bandwidth", [], (1, 2), "cpu", tmp_path) for _ in range(2)}
    assert len(paths) == 1 and len(list(recorded.read(paths.pop()))) == 1


def test_a_shared_run_that_failed_is_not_kept(tmp_path, monkeypatch):
    def fail(function, **_):
        if function is record.machine:
            return [{"device": "X", "device_memory": 10**9, "versions": {}}]
        raise record.LaunchError("CUDA out of memory")

    monkeypatch.setattr(record, "gpu_count", lambda: 1)
    monkeypatch.setattr(record, "launch", fail)
    path = record.record("zero", ["tiny"], (1, 2), "cuda", tmp_path, stages=(3,))
    assert [run["ranks"] for run in json.loads(path.read_text())["runs"]] == [1]
    assert record.record("zero", ["tiny"], (2,), "cuda", tmp_path / "none", stages=(3,)) is None


@pytest.mark.parametrize(
    "words, said",
    [
        ("zero --share", "need a GPU each, and there are 0"),
        ("zero --ranks 0", "invalid choice: 0"),
        ("one", "experiments are zero"),
    ],
)
def test_the_recorder_names_what_is_wrong(words, said, tmp_path):
    command = [sys.executable, "-m", "helpers.course.recording.record", *words.split(), "--out", tmp_path]
    without_gpus = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=without_gpus, timeout=120)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_too_few_gpus_are_a_sentence_for_every_experiment(tmp_path, monkeypatch, capsys):
    """With --share the numbers of ranks are not bounded before; and a list of sizes or ranks may be empty."""
    monkeypatch.setattr(record, "gpu_count", lambda: 1)
    monkeypatch.setattr(record, "launch", None)  # nothing is started
    for name, experiment in table.EXPERIMENTS.items():
        if experiment.may_share:
            continue
        for sizes in (["tiny"], ["1.5B"], ["tiny", "7.5B"]):
            assert record.record(name, sizes, (2, 4), "cuda", tmp_path) is None
            assert f"{name}: nothing to run with 2, 4 ranks, sizes " in capsys.readouterr().out
    for sizes, counts, stages in (([], [2], [0]), (["tiny"], [], [0]), (["tiny"], [2], [])):
        assert record.record("zero", sizes, counts, "cpu", tmp_path, stages=stages) is None
        assert record.record("speed", sizes or ["124M"], counts, "cpu", tmp_path, stages=stages) is None
    assert capsys.readouterr().out.count("nothing to run with ") == 6 and not list(tmp_path.iterdir())


ON_A_CPU = [name for name, experiment in table.EXPERIMENTS.items() if not experiment.needs_gpu]
SLOW = "autotuning"  # ten trainings, three times; tests/recording/test_autotuning.py tests its parts


@pytest.mark.ranks
@pytest.mark.parametrize("experiment", [name for name in ON_A_CPU if name != SLOW])
def test_the_recorder_records(experiment, tmp_path, monkeypatch):
    short(monkeypatch, [1024, 4096])
    if reason := table.EXPERIMENTS[experiment].missing():
        pytest.skip(reason)
    path = record.record(experiment, ["tiny"], (1, 2), "cpu", tmp_path)
    found = list(recorded.read(path))
    assert found and not any(run.error for run in found)
    for run in found:
        for rank, report in enumerate(run.reports):
            for moment in report.get("moments", ()):
                assert run.states(rank, moment) == run.predicted(rank, moment)
        if experiment == "pipeline":
            check_timeline(run)


def test_what_an_experiment_lacks_is_said_and_nothing_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(
        table.EXPERIMENTS,
        "qlora",
        replace(table.EXPERIMENTS["qlora"], missing=lambda: "a library is missing"),
    )
    assert record.record("qlora", [], (2,), "cpu", tmp_path) is None and not list(tmp_path.iterdir())
    assert "qlora: a library is missing" in capsys.readouterr().out
    assert record.record("qlora", [], (2,), "cuda", tmp_path) is None


def in_scratch(scratch):
    from pathlib import Path

    Path(scratch, "swap").write_bytes(bytes(8))
    raise RuntimeError(f"nothing to read in {scratch}/swap")


@pytest.mark.ranks
def test_files_of_a_run_are_gone_when_it_failed_and_their_place_is_not_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(record.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(table.EXPERIMENTS, "nvme", replace(table.EXPERIMENTS["nvme"], function=in_scratch))
    error = record.run("nvme", 2, {"size": "3.2M", "place": "disk"}, "cpu")["error"]
    assert "nothing to read in scratch/swap" in error and not list(tmp_path.glob("recording-*"))


def test_a_bar_of_the_steps_peak_is_as_tall_as_the_peak():
    found = [
        recorded.runs("zero", size="7.5B", ranks=ranks, stage=stage)[0]
        for ranks, stage in ((2, 0), (2, 1), (4, 1))
    ]
    clusters = recorded.step_peak_clusters(found)
    assert list(clusters) == ["stage 0, 2 ranks", "stage 1, 2 ranks", "stage 1, 4 ranks (shared)"]
    for run, bars in zip(found, clusters.values()):
        assert sum(bars["formula"].values()) == run.predicted_step_peak(0)
        assert bars["recorded"] is None if run.error else sum(bars["recorded"].values()) == run.step_peak(0)
        assert min(bars["formula"].values()) >= 0


def test_a_recorded_training_is_a_plan_and_another_run_is_refused():
    plan = recorded.plan(recorded.runs("pipeline", size="7.5B")[0])
    assert (plan.pipeline, plan.replicas, plan.micro_batches, plan.stage, plan.checkpointed) == (
        2,
        1,
        8,
        1,
        False,
    )
    with pytest.raises(ValueError, match="this run is of 'bandwidth'"):
        recorded.plan(recorded.runs("bandwidth")[0])
    assert recorded.plan(recorded.runs("speed", change="offload")[0]).offload


def test_trainings_are_each_case_once_and_what_failed_has_no_highest_moment():
    found = recorded.trainings()
    cases = [
        (
            run.experiment,
            run.ranks,
            *[(name, value) for name, value in run.arguments.items() if name != "start"],
        )
        for run in found
    ]
    assert len(set(cases)) == len(cases) and {run.experiment for run in found} == {
        "zero",
        "speed",
        "pipeline",
    }
    assert all((recorded.highest(run) is None) == run.out_of_memory for run in found)


def test_large_messages_take_what_was_predicted_and_small_ones_wait_for_their_host():
    """Latency and bandwidth, as assumed before the recording, beside the recorded seconds."""
    (run,) = (run for run in RUNS if run.experiment == "collectives" and run.arguments["link"] == "NVLink")
    found, expected = run.reports[0]["all-reduce"], run.foretold["all-reduce"]
    small, large = 0, found["bytes"].index(2**30)
    assert found["replayed"][small] < expected[small] < statistics.median(found["alone"][small]) / 5
    for at in range(large, len(expected)):
        assert expected[at] == pytest.approx(found["queued"][at], rel=0.15)


def test_a_hang_under_nccl_keeps_the_line_that_its_stack_does_not_show():
    """The rank stands at the next line that needs a number; the flight recorder knows the collective's."""
    gone = recorded.hang("gone")
    assert gone.stood == ["line 72 in train_step", "line 64 in train_step"]
    assert gone.waiting[0][0] == "number 121 of its group, 16,777,216 elements, called at hang.py:70"
    assert gone.waiting[1] == [] == [line for line in gone.reading if "/" in line]
    assert "missing ranks: {1}" in gone.reading and "line" not in gone.watchdog(0)
    assert gone.watchdog(0).startswith("Watchdog caught") and gone.watchdog(1) == ""


def test_two_groups_crossed_leave_both_gpus_busy_and_torchs_reader_silent():
    """Each rank's watchdog names the same collective; only the order of entering tells them apart."""
    crossed = recorded.hang("crossed")
    shown = crossed.panels("both")
    assert [ys[-1] for _, ys in shown["both: utilisation, %"].values()][:2] == [100, 100]
    assert all(ys[-1] < 200 < 680 < crossed.healthy[1] for _, ys in [*shown["both: power, W"].values()][:2])
    first, second = (line.partition("elements")[0] for line in crossed.waiting[0])
    assert [line.partition("elements")[0] for line in crossed.waiting[1]] == [second, first]
    named = {crossed.watchdog(rank).partition(" ran for")[0] for rank in range(2)}
    assert len(named) == 1 and crossed.reading == []


def test_nccl_reports_nothing_when_a_rank_goes_on_to_the_next_collective():
    skipped = recorded.hang("next")
    assert skipped.output[1][4] == "rank 1 leaves the first all-reduce out in step 60"
    assert [lines[-1] for lines in skipped.output] == ["rank 0: step 600 done", "rank 1: step 600 done"]
    assert not any("rror" in line or "atchdog" in line for lines in skipped.output for line in lines)


@pytest.mark.parametrize("blocks", ["a block", "16 blocks"])
def test_a_waterfall_adds_up_to_the_clock(blocks):
    """Each kernel has a kind, what is computed again is most of a forward pass, and the update multiplies
    no matrices."""
    plain, again = recorded.runs("waterfall", blocks=blocks)
    for run in (plain, again):
        for passes, report in run.reports[0].items():
            parts = recorded.waterfall(run, passes)
            assert sum(parts.values()) == pytest.approx(statistics.median(report["seconds"]))
            assert parts["between kernels"] < 0.1 * sum(parts.values())
            assert bool(parts["matrices"]) == bool(parts["attention"]) == (passes != "update")
    first, second = (sum(recorded.waterfall(run).values()) for run in (plain, again))
    assert 0.7 < (second - first) / sum(recorded.waterfall(plain, "forward").values()) < 1
    products = [name for name in plain.reports[0]["forward and backward"]["kernels"] if "nvjet" in name]
    assert products  # so that "matrices" is not what other names left
