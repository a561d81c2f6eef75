"""Rehearsals that pose as GPUs beside what was recorded on two H200: every category at every moment and every
peak, to a byte.

A sample runs always; `make rehearse-all` rehearses the first and the last rank of every run of the experiment
`zero`, and others.
"""

import os

import pytest
from helpers import preload, recorded, rehearse
from helpers.course.recording import experiments
from helpers.course.recording.experiment import SHAPES
from helpers.course.recording.finetune import FINE_TUNING, finetune
from helpers.course.recording.longest import LONG_TEXT, longest_sequence
from helpers.course.recording.table import EXPERIMENTS, NAMED

pytestmark = pytest.mark.ranks
MEMORY = 150_000_000_000  # bytes of an H200, to be told a program that asks
# In the first step of stage 3 a byte is missing: NCCL's, in which its barrier meets, and which lives until
# its own thread has seen the barrier done.
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
        found |= {(moment, category): size for category, size in noted["categories"].items()} | {
            (moment, "peak"): noted["peak"]
        }
    return found


@pytest.mark.parametrize("size, stage, ranks, rank", ALL if "REHEARSE_ALL" in os.environ else SAMPLE)
def test_every_figure_is_that_of_the_gpu(size, stage, ranks, rank):
    (run,) = [run for run in recorded.runs("zero", size=size, stage=stage, ranks=ranks) if run.reports]
    real = figures(run.reports[rank])
    arguments = {"size": run.size, "config": run.configuration}
    rehearsed = figures(rehearse(experiments.zero, ranks, rank, arguments, device="cuda", memory=MEMORY))
    assert len(real) == 28
    assert {
        place: (real[place], rehearsed[place])
        for place in real
        if real[place] != rehearsed[place] and place != ("start", "peak")
    } == {}
    missing = real["start", "peak"] - rehearsed["start", "peak"]
    assert missing == 0 if stage < 3 else 0 <= missing <= TOLERANCE


NOTED = (
    "activations",
    "construction",
    "tensor",
)  # experiments whose every recorded byte and count is rehearsed
MEASURED_OTHERWISE = ("seconds", "timeline", "settled")  # in a report: what is no byte of a tensor
ALLOCATOR = (
    "requested",
    "requested_peak",
    "rounding",
    "unsplit",
    "largest_unsplit",
    "allocated",
    "reserved",
    "used",
    "workspaces",
)
OTHERS = [
    (name, place, rank)
    for name in NOTED
    for place, run in enumerate(recorded.runs(name))
    for rank in range(run.ranks)
    if run.reports
]
FEW = [
    ("activations", 2, 0),
    ("construction", 0, 1),
]  # 7.5 billion parameters without checkpointing; 1.5 billion partitioned


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
    found = EXPERIMENTS[name]
    arguments = {key: run.size if key == "size" else value for key, value in run.arguments.items()}
    arguments |= {"config": run.configuration} if run.configuration else {}
    real = plain(run.reports[rank])
    rehearsed = plain(rehearse(found.function, run.ranks, rank, arguments, device="cuda", memory=MEMORY))
    assert (
        len(real) >= 2
        and {path: (real[path], rehearsed.get(path)) for path in real if real[path] != rehearsed.get(path)}
        == {}
    )


TUNED = [place for place, run in enumerate(recorded.runs("finetune")) if run.reports]


@pytest.mark.parametrize(
    "place", TUNED, ids=[recorded.runs("finetune")[place].arguments["case"] for place in TUNED]
)
def test_a_fine_tuning_with_adapters_is_that_of_the_gpu(place):
    """Of 6.2 billion parameters, with 8,192 tokens.  Imported under the ledger, as by a rehearsal, peft has
    16 bytes of its own."""
    if "REHEARSE_ALL" not in os.environ:
        pytest.skip("a minute: make rehearse-all")
    preload("peft", "transformers.GlmForCausalLM")
    run = recorded.runs("finetune")[place]
    arguments = {
        "shape": SHAPES["6.2B"],
        "case": FINE_TUNING[run.arguments["case"]],
        "limit": None,
        "config": run.configuration,
    }
    real = plain(run.reports[0]["held"])
    rehearsed = plain(rehearse(finetune, run.ranks, 0, arguments, device="cuda", memory=MEMORY)["held"])
    assert (
        len(real) == 27
        and {path: (size, rehearsed.get(path)) for path, size in real.items() if size != rehearsed.get(path)}
        == {}
    )


LONGEST = [run for run in recorded.runs("longest_sequence") if LONG_TEXT[run.arguments["way"]].stage < 3]
# torch's allocator keeps blocks that are too small for the longest sequence of all; the tries near the end
# are a hundredth apart
ALLOCATORS = 1.03


def workspaces(way):
    """Bytes that matrix products hold for themselves on an H200: a recorded peak of these runs has them, no
    ledger has."""
    return (66 if way.checkpointing else 65) << 20


@pytest.mark.parametrize("run", LONGEST, ids=[run.arguments["way"] for run in LONGEST])
def test_a_rehearsal_finds_the_longest_sequence_that_the_gpu_had_room_for(run):
    """Every length that was tried and every peak."""
    if "REHEARSE_ALL" not in os.environ:
        pytest.skip("two minutes: make rehearse-all")
    preload("peft", "transformers.GlmForCausalLM")
    arguments = {
        name: NAMED[name][value] if name in NAMED else value for name, value in run.arguments.items()
    }
    own = workspaces(arguments["way"])
    arguments |= {"limit": run.arguments["limit"] - own, "config": run.configuration}
    found = rehearse(longest_sequence, run.ranks, 0, arguments, device="cuda", memory=arguments["limit"])
    real = run.reports[0]
    lengths = [(one["tokens"], one["peak"] + own) for one in found["tried"]]
    assert lengths[: len(real["tried"])] == [(one["tokens"], one["peak"]) for one in real["tried"]]
    assert real["failed"] <= found["failed"] <= ALLOCATORS * real["failed"]


STAGE_3 = [run for run in recorded.runs("longest_sequence") if LONG_TEXT[run.arguments["way"]].stage == 3]
BARRIER = 1  # byte of NCCL
WORKSPACE = 64 << 20  # bytes


def peaks(text, way, config, lengths):
    """In a rehearsed rank: the most bytes of a step with sequences of each length, after a first step, as
    `longest_sequence` has it."""
    import deepspeed
    from helpers.course.recording.longest import _engine, _step
    from helpers.tools.measure.ledger import Ledger

    deepspeed.init_distributed()
    found = []
    with Ledger() as ledger:
        engine = _engine(text[0], way, config)
        _step(engine, way, text[1])
        for tokens in lengths:
            ledger.snapshot("before")
            _step(engine, way, tokens)
            found.append(ledger.snapshot("after").peak)
    return found


@pytest.mark.parametrize("run", STAGE_3, ids=[run.arguments["way"] for run in STAGE_3])
def test_under_stage_3_a_gpu_holds_what_it_gathered_until_it_has_caught_up_with_its_host(run):
    """The first two recorded lengths and the last.

    A rehearsed rank gives back a gathered parameter when the host does; a GPU when it has worked off what the
    host had asked of it before.  Where activations go to the host's memory, the host waits for each copy, and
    the short lengths are equal but for the workspace and NCCL's byte. Elsewhere a GPU has parameters more, as
    the token table, 533 MB: up to 0.8 GB with 1,024 tokens, 0.07 to 0.6 GB with the longest sequences."""
    if "REHEARSE_ALL" not in os.environ:
        pytest.skip("half a minute: make rehearse-all")
    preload("peft", "transformers.GlmForCausalLM")
    given = {
        name: NAMED[name][value] if name in NAMED else value
        for name, value in run.arguments.items()
        if name != "limit"
    }
    tried = run.reports[0]["tried"]
    few = [*tried[:2], tried[-1]]
    lengths = [one["tokens"] for one in few]
    rehearsed = rehearse(
        peaks, run.ranks, 0, given | {"config": run.configuration, "lengths": lengths}, device="cuda"
    )
    more = [one["peak"] - held for one, held in zip(few, rehearsed)]
    table = 2 * given["text"][0]["vocab_size"] * given["text"][0]["hidden_size"]
    print(f"{run.arguments['way']}: {dict(zip(lengths, more))} bytes more than rehearsed")
    assert all(0 < size < 2 * table for size in more)
    assert more[-1] < 0.025 * tried[-1]["peak"]
    if given["way"].host:
        assert more[:2] == [WORKSPACE + BARRIER] * 2


def second_steps(cases):
    """In a rehearsed rank: the most bytes of the second step of each (size, configuration, whether blocks are
    checkpointed), as lesson 17 has it."""
    import deepspeed
    import torch
    from helpers import models
    from helpers.tools.measure.ledger import Ledger

    deepspeed.init_distributed()
    found = []
    for size, config, checkpointing in cases:
        with Ledger() as ledger:
            model = models.build(models.GPT, size, checkpointing=checkpointing, config=config)
            ledger.watch(model)
            engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
            ledger.watch(engine)
            ids = torch.zeros(
                (config["train_micro_batch_size_per_gpu"], size.context),
                dtype=torch.int64,
                device=engine.device,
            )
            for _ in range(2):
                ledger.snapshot("before")
                for _ in range(config["gradient_accumulation_steps"]):
                    engine.backward(engine(ids, ids))
                    engine.step()
            found.append(ledger.snapshot("after").peak)
        del engine, model
    return found


@pytest.mark.parametrize("ranks", (1, 2))
def test_every_recorded_training_by_data_parallelism_is_within_a_per_cent_of_its_rehearsal(ranks):
    """All that lesson 17 shows, of which it rehearses some.  Those of the experiment `speed` are torch's own
    count, which has workspaces too and, at stage 0, what its allocator rounds up: 0.5 GB, since each
    parameter has tensors of its own."""
    if "REHEARSE_ALL" not in os.environ:
        pytest.skip("two minutes: make rehearse-all")
    runs = [
        run
        for run in recorded.trainings()
        if run.reports and not run.shared and run.experiment != "pipeline" and run.ranks == ranks
    ]
    cases = [(run.size, run.configuration, run.arguments.get("checkpointing", True)) for run in runs]
    rehearsed = rehearse(second_steps, ranks, 0, {"cases": cases}, device="cuda")
    off = {
        f"{run.experiment}, {run.arguments}": 100 * (held / recorded.highest(run) - 1)
        for run, held in zip(runs, rehearsed)
    }
    assert len(off) == {1: 11, 2: 28}[ranks]
    print(
        f"{len(off)} runs on {ranks} ranks: rehearsed / recorded {min(off.values()):+.2f} to "
        f"{max(off.values()):+.4f} %"
    )
    assert {name: error for name, error in off.items() if not -0.9 < error < 0.001} == {}
    assert all(abs(error) < 0.12 for name, error in off.items() if name.startswith("zero"))
