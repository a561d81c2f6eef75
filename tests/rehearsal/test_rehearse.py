"""`rehearse`: its arguments, what comes back, what it says of what cannot be rehearsed."""

import re

import pytest
import torch
from helpers import models, rehearse
from helpers.tools.launcher import progress
from helpers.tools.measure.ledger import Ledger
from helpers.tools.rehearsal.rehearsing import RehearsalError
from tests.support import configuration

BAD = [  # arguments, the error, its words
    ({"ranks": 0}, ValueError, "ranks must be 1 or more, not 0"),
    ({"ranks": 2.0}, TypeError, "ranks must be a whole number, not 2.0"),
    ({"ranks": True}, TypeError, "ranks must be a whole number"),
    ({"ranks": 4, "rank": 4}, ValueError, "rank must be from 0 to 3, not 4"),
    ({"ranks": 4, "rank": -1}, ValueError, "rank must be from 0 to 3, not -1"),
    ({"ranks": 4, "device": "gpu"}, ValueError, 'device must be "cpu" or "cuda", not \'gpu\''),
    ({"ranks": 4, "memory": 0}, ValueError, "memory must be a positive number of bytes, not 0"),
    ({"ranks": 4, "memory": "80GB"}, ValueError, "memory must be a positive number of bytes, not '80GB'"),
]


@pytest.mark.parametrize("given, error, words", BAD, ids=[words for _, _, words in BAD])
def test_a_bad_argument_is_refused_before_anything_starts(given, error, words):
    with pytest.raises(error, match=re.escape(words)):
        rehearse(print, **given)


def who():
    import os

    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    return (
        comm.get_rank(),
        comm.get_world_size(),
        {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
    )


@pytest.mark.ranks
@pytest.mark.parametrize("device, local", [("cpu", "517"), ("cuda", "5")])
def test_it_is_the_rank_that_was_asked_for(device, local):
    said = {"RANK": "517", "WORLD_SIZE": "1024", "LOCAL_RANK": local}
    assert rehearse(who, ranks=1024, rank=517, device=device) == (517, 1024, said)


def tensors():
    return {
        "known": torch.arange(3) + 1,
        "unknown": torch.ones(2, 3, dtype=torch.bfloat16),
        "number": torch.ones(4).sum().item(),
    }


@pytest.mark.ranks
def test_tensors_come_back_with_their_numbers_or_as_shapes():
    found = rehearse(tensors, ranks=2)
    assert found["known"].tolist() == [1, 2, 3] and found["number"] == 1.0
    assert (
        found["unknown"].device.type == "meta"
        and found["unknown"].shape == (2, 3)
        and found["unknown"].dtype is torch.bfloat16
    )


def of_another_shape():
    return torch.ones(8).nonzero()


def of_an_unknown_kind():
    return torch.ones(8).unique()


@pytest.mark.ranks
@pytest.mark.parametrize(
    "function, operation", [(of_another_shape, "aten.nonzero.default"), (of_an_unknown_kind, "unique")]
)
def test_what_depends_on_numbers_is_refused_in_one_line(function, operation):
    with pytest.raises(RuntimeError) as caught:
        rehearse(function, ranks=8, rank=3)
    first, *lines = str(caught.value).splitlines()
    assert (
        first.startswith("rank 3 of 8, rehearsed, raised NoNumbers: the shape of what") and operation in first
    )
    assert caught.value.rank == 3
    assert any(function.__name__ in line for line in lines) and not any(
        "helpers/tools/rehearsal" in line for line in lines
    )


def saved():
    torch.save(torch.ones(1), "nowhere")


@pytest.mark.ranks
def test_nothing_can_be_saved():
    with pytest.raises(RuntimeError, match="a rehearsal has no numbers that could be saved"):
        rehearse(saved, ranks=1)


def trained(stage):
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus

    deepspeed.init_distributed()
    with Ledger() as ledger:
        config = configuration(stage, stage3_param_persistence_threshold=0)
        model = models.build(models.GPT, config=config)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        engine.backward(
            engine(
                *corpus.batch(
                    0, comm.get_world_size(), 64, comm.get_rank(), comm.get_world_size(), engine.device
                )
            )
        )
        engine.step()
        return ledger.snapshot("end")


@pytest.mark.ranks
def test_a_rank_without_room_says_what_held_its_memory():
    fits = rehearse(trained, ranks=64, rank=63, arguments={"stage": 1}, device="cuda", memory=80e9)
    words = (
        r"rank 63 of 64, rehearsed, raised OutOfMemory: no room for .* bytes more.* may hold "
        rf"{fits.peak - 1:,} and holds .* of "
    )
    with pytest.raises(RuntimeError, match=words):
        rehearse(trained, ranks=64, rank=63, arguments={"stage": 1}, device="cuda", memory=fits.peak - 1)


@pytest.mark.ranks
def test_more_ranks_leave_less_to_each():
    def held(ranks):
        return rehearse(trained, ranks=ranks, arguments={"stage": 3}, device="cuda")

    few, many = held(2), held(512)
    assert many.model_states - many["buffers"] < (few.model_states - few["buffers"]) / 100
    assert few.device == many.device


def printing(rank_of_old=None):
    print("said once")


@pytest.mark.ranks
def test_what_the_rank_prints_is_shown(capsys):
    rehearse(printing, ranks=3, rank=1)
    assert capsys.readouterr().out == "said once\n"


def two_steps_that_wait_to_be_named(line):
    import time

    import deepspeed

    def until_named(phase):
        ends = time.monotonic() + 60
        while phase not in line.read_text() and time.monotonic() < ends:
            time.sleep(0.01)

    deepspeed.init_distributed()
    until_named("building")
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(8, 1), config=configuration(stage=1))
    for step in (1, 2):
        loss = engine(torch.ones(1, 8)).sum()
        until_named(f"forward pass {step}")
        engine.backward(loss)
        until_named(f"backward pass {step}")
        engine.step()
        until_named(f"optimizer step {step}")


@pytest.mark.ranks
def test_the_line_under_the_cell_says_how_far_it_has_come(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "INTERVAL", 0)
    drawn, line = [], tmp_path / "line"
    line.touch()

    def draw(_, text):
        drawn.append(text.split(" ... ")[0])
        line.write_text(text)

    monkeypatch.setattr(progress.Progress, "_draw", draw)
    rehearse(two_steps_that_wait_to_be_named, ranks=64, rank=3, arguments={"line": line})
    passes = [
        f"{name} {step}" for step in (1, 2) for name in ("forward pass", "backward pass", "optimizer step")
    ]
    said = [f"rehearsing rank 3 of 64: {words}" for words in ("building", *passes)]
    assert [text for text in dict.fromkeys(drawn) if text in said] == said


def test_a_torch_that_is_too_old_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setattr("helpers.tools.rehearsal.rehearsing.version", lambda package: "2.11.0+cu130")
    with pytest.raises(
        RehearsalError, match="needs torch 2.13 or newer, of which it replaces parts, and here is 2.11.0"
    ):
        rehearse(lambda: None, ranks=2)
