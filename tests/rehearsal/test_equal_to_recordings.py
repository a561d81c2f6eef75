"""Rehearsals that pose as GPUs beside what was recorded on two H200: every category at every moment and every peak, to a byte.

A sample runs always; `make rehearse-all` rehearses the first and the last rank of every run of the experiment `zero`, and others.
"""

import os

import pytest
from helpers import preload, recorded, rehearse
from helpers.recording import experiments
from helpers.recording.longest import longest_sequence
from helpers.recording.table import FINE_TUNING, LONG_TEXT, NAMED, SHAPES, experiment

pytestmark = pytest.mark.ranks
MEMORY = 150_000_000_000  # bytes of an H200, to be told a program that asks
# In the first step of stage 3 a byte is missing: NCCL's, in which its barrier meets, and which lives until its own thread has seen the barrier done.
TOLERANCE = 1  # bytes, of the peak before the moments that were noted
SAMPLE = [("7.5B", 1, 2, 1), ("7.5B", 3, 4, 3)]  # size, stage, ranks, rank
ALL = [
    (run.arguments["size"], run.arguments["stage"], run.ranks, rank)
    for run in recorded.runs("zero")
    for rank in sorted({0, run.ranks - 1})
    if run.reports
]


def figures(report):
    """{(moment, category or "peak"): bytes}."""
    found = {("start", "peak"): report["start"]}
    for moment, noted in report["moments"].items():
        found |= {(moment, category): size for category, size in noted["categories"].items()} | {(moment, "peak"): noted["peak"]}
    return found


@pytest.mark.parametrize("size, stage, ranks, rank", ALL if "REHEARSE_ALL" in os.environ else SAMPLE)
def test_every_figure_is_that_of_the_gpu(size, stage, ranks, rank):
    (run,) = [run for run in recorded.runs("zero", size=size, stage=stage, ranks=ranks) if run.reports]
    real = figures(run.reports[rank])
    arguments = {"size": run.size, "config": run.configuration}
    rehearsed = figures(rehearse(experiments.zero, ranks, rank, arguments, device="cuda", memory=MEMORY))
    assert len(real) == 28
    assert {place: (real[place], rehearsed[place]) for place in real if real[place] != rehearsed[place] and place != ("start", "peak")} == {}
    missing = real["start", "peak"] - rehearsed["start", "peak"]
    assert missing == 0 if stage < 3 else 0 <= missing <= TOLERANCE


NOTED = ("activations", "construction", "tensor")  # experiments whose every recorded byte and count is rehearsed
MEASURED_OTHERWISE = ("seconds", "timeline", "settled")  # in a report: what is no byte of a tensor
ALLOCATOR = ("requested", "requested_peak", "rounding", "unsplit", "largest_unsplit", "allocated", "reserved", "used", "workspaces")
OTHERS = [(name, place, rank) for name in NOTED for place, run in enumerate(recorded.runs(name)) for rank in range(run.ranks) if run.reports]
FEW = [("activations", 2, 0), ("construction", 0, 1)]  # 7.5 billion parameters without checkpointing; 1.5 billion partitioned


def plain(value, path=()):
    """{path: number} of a report, without what is no tensor's."""
    if isinstance(value, dict):
        parts = [(name, part) for name, part in value.items() if name not in MEASURED_OTHERWISE + ALLOCATOR]
    elif isinstance(value, (list, tuple)):
        parts = list(enumerate(value))
    else:
        return {path: value}
    return {place: number for name, part in parts for place, number in plain(part, (*path, name)).items()}


@pytest.mark.parametrize("name, place, rank", OTHERS if "REHEARSE_ALL" in os.environ else FEW)
def test_every_byte_of_another_experiment_is_that_of_the_gpu(name, place, rank):
    run = recorded.runs(name)[place]
    found = experiment(name)
    arguments = {key: run.size if key == "size" else value for key, value in run.arguments.items()}
    arguments |= {"config": run.configuration} if run.configuration else {}
    real = plain(run.reports[rank])
    rehearsed = plain(rehearse(found.function, run.ranks, rank, arguments, device="cuda", memory=MEMORY))
    assert len(real) >= 2 and {path: (real[path], rehearsed.get(path)) for path in real if real[path] != rehearsed.get(path)} == {}


TUNED = [place for place, run in enumerate(recorded.runs("finetune")) if run.reports]


@pytest.mark.parametrize("place", TUNED, ids=[recorded.runs("finetune")[place].arguments["case"] for place in TUNED])
def test_a_fine_tuning_with_adapters_is_that_of_the_gpu(place):
    """Of 6.2 billion parameters, with 8,192 tokens.  Imported under the ledger, as by a rehearsal, peft has 16 bytes of its own."""
    if "REHEARSE_ALL" not in os.environ:
        pytest.skip("a minute: make rehearse-all")
    preload("peft", "transformers.GlmForCausalLM")
    run = recorded.runs("finetune")[place]
    arguments = {"shape": SHAPES["6.2B"], "case": FINE_TUNING[run.arguments["case"]], "limit": None, "config": run.configuration}
    real = plain(run.reports[0]["held"])
    rehearsed = plain(rehearse(experiments.finetune, run.ranks, 0, arguments, device="cuda", memory=MEMORY)["held"])
    assert len(real) == 27 and {path: (size, rehearsed.get(path)) for path, size in real.items() if size != rehearsed.get(path)} == {}


LONGEST = [run for run in recorded.runs("longest_sequence") if LONG_TEXT[run.arguments["way"]].stage < 3]
ALLOCATORS = 1.03  # torch's allocator keeps blocks that are too small for the longest sequence of all; the tries near the end are a hundredth apart


def workspaces(way):
    """Bytes that matrix products hold for themselves on an H200: a recorded peak of these runs has them, no ledger has."""
    return (66 if way.checkpointing else 65) << 20


@pytest.mark.parametrize("run", LONGEST, ids=[run.arguments["way"] for run in LONGEST])
def test_a_rehearsal_finds_the_longest_sequence_that_the_gpu_had_room_for(run):
    """Every length that was tried and every peak.  Under stage 3 a GPU's peak depends on when gathers end."""
    if "REHEARSE_ALL" not in os.environ:
        pytest.skip("two minutes: make rehearse-all")
    preload("peft", "transformers.GlmForCausalLM")
    arguments = {name: NAMED[name][value] if name in NAMED else value for name, value in run.arguments.items()}
    own = workspaces(arguments["way"])
    arguments |= {"limit": run.arguments["limit"] - own, "config": run.configuration}
    found = rehearse(longest_sequence, run.ranks, 0, arguments, device="cuda", memory=arguments["limit"])
    real = run.reports[0]
    lengths = [(one["tokens"], one["peak"] + own) for one in found["tried"]]
    assert lengths[: len(real["tried"])] == [(one["tokens"], one["peak"]) for one in real["tried"]]
    assert real["failed"] <= found["failed"] <= ALLOCATORS * real["failed"]
