"""The clock: work, messages and waiting in real ranks; what it says of messages that nobody waits for; what
it draws and writes; what it refuses.

Nothing is asserted about seconds: only the order of what must come before what, and how often.
"""

import json
from collections import Counter

import pytest
import torch
from helpers import launch, models
from helpers.tools.measure import timelines as module
from helpers.tools.measure import together
from helpers.tools.measure.clock import Clock
from helpers.tools.measure.ledger import Ledger
from tests.support import configuration


def made(*boxes, rank=0, blocked=(), sizes=()):
    """A clock that noted these."""
    clock = Clock("cpu")
    clock.boxes, clock.rank, clock.blocked, clock.sizes = list(boxes), rank, list(blocked), dict(sizes)
    return clock


def kinds(clock):
    return Counter(kind for kind, *_ in clock.boxes)


# --- messages


def messages(wait):
    import deepspeed
    import deepspeed.comm as comm
    import torch

    deepspeed.init_distributed()
    with Clock() as clock:
        with clock.work("backward"):
            request = comm.all_reduce(torch.ones(1000), async_op=True)
        if wait:
            request.wait()
        comm.all_reduce(torch.ones(1000))
        torch.distributed.broadcast(torch.ones(10), 0)
    return clock, comm.all_reduce.__qualname__, torch.distributed.all_reduce.__module__, together._open


@pytest.mark.ranks
def test_messages_are_noted_from_their_call_to_their_end():
    for clock, name, _, still_open in launch(messages, ranks=2, arguments={"wait": True}, device="cpu"):
        assert "Clock" not in name and not still_open  # DeepSpeed's own again
        assert clock.begun_during("backward") == (1, 2)
        found = [
            ("all-reduce", "1"),
            ("all-reduce", "2"),
            ("backward", ""),
            ("broadcast", "1"),
            ("waiting", "all-reduce"),
        ]
        assert sorted((kind, label) for kind, label, *_ in clock.boxes) == found
        assert clock.sizes == {("all-reduce", "1"): 4000, ("all-reduce", "2"): 4000, ("broadcast", "1"): 40}
        assert all(start <= end for *_, start, end in clock.boxes)
        assert (
            clock.cost > 0 and len(clock.blocked) == 3
        )  # a request that was waited for, and two messages that return when they have arrived


@pytest.mark.ranks
def test_a_message_that_ends_later_is_waited_for():
    for clock, *_ in launch(messages, ranks=2, arguments={"wait": False}, device="cpu"):
        assert kinds(clock)["all-reduce"] == 2


def in_turns():
    """Rank 0 asks for the sum first, and works a while; rank 1 comes later."""
    import os
    import time

    import deepspeed
    import deepspeed.comm as comm
    import torch

    deepspeed.init_distributed()
    comm.barrier()
    with Clock() as clock:
        if os.environ["RANK"] == "1":
            with clock.work("forward"):
                time.sleep(0.2)
        comm.all_reduce(torch.ones(1000))
    return clock


@pytest.mark.ranks
def test_the_ranks_of_a_machine_share_an_axis():
    """No sum arrives before the last rank has asked for it, whichever clock says so."""
    clocks = launch(in_turns, ranks=2, device="cpu")
    calls = [next(box for box in clock.boxes if box[0] == "all-reduce") for clock in clocks]
    assert max(start for *_, start, _ in calls) <= min(end for *_, end in calls)
    assert [clock.rank for clock in clocks] == [0, 1]
    drawn = module.clock_rows(clocks)
    assert list(drawn) == ["rank 0: messages", "rank 1: work", "rank 1: messages"]
    assert min(start for row in drawn.values() for *_, start, _ in row) == 0
    assert drawn["rank 1: work"][0][3] <= drawn["rank 1: messages"][0][2]


# --- an engine


def trained(stage):
    """A clock of one step of two micro-batches, and whether the engine's methods are its own again."""
    import deepspeed
    from helpers import corpus

    dropped = {
        f"stage3_{key}": 0
        for key in ("param_persistence_threshold", "max_live_parameters", "max_reuse_distance")
    }
    config = configuration(stage, accumulation=2, **dropped)
    model = models.build(models.GPT, config=config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in range(2):
        with Clock() as clock:
            clock.watch(engine)
            for micro in range(2):
                engine.backward(engine(*corpus.batch(2 * step + micro, 1, 64, device=engine.device)))
                engine.step()
    return clock, {"forward", "backward", "step"} & set(vars(engine))


SENDS = {
    0: {"all-reduce"},
    1: {"all-reduce", "all-gather"},
    2: {"all-reduce", "all-gather"},
    3: {"all-reduce", "all-gather", "reduce-scatter"},
}


@pytest.mark.ranks
@pytest.mark.parametrize("stage", range(4))
def test_every_stage_by_the_clock(stage):
    for clock, left in launch(trained, ranks=2, arguments={"stage": stage}, device="cpu"):
        found = kinds(clock)
        assert (found["forward"], found["backward"], found["optimizer"]) == (2, 2, 2) and not left
        assert {kind for kind in found if kind in module.SENT} <= SENDS[stage]
        assert {kind for kind in found if kind in module.SENT} >= SENDS[stage] - (
            {"all-reduce"} if stage == 3 else set()
        )
        assert [label for kind, label, *_ in clock.boxes if kind == "backward"] == ["1", "2"]
        assert 0 <= clock.overlap() <= 1


def piped():
    import contextlib
    import io

    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule
    from helpers import corpus

    deepspeed.init_distributed()
    size = models.TINY
    layers = [
        LayerSpec(models.Embedding, size),
        *[LayerSpec(models.Block, size)] * 2,
        LayerSpec(models.Head, size),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        net = PipelineModule(layers, num_stages=2, loss_fn=models.NextTokenLoss(), partition_method="uniform")
        engine, *_ = deepspeed.initialize(model=net, config=configuration(accumulation=3))
        rows = corpus.batch(0, 6, size.context, device=engine.device)
        batches = iter([(ids, targets.clone()) for ids, targets in zip(*(part.split(1) for part in rows))])
        engine.train_batch(batches)
        with Clock() as clock:
            clock.watch(engine)
            engine.train_batch(batches)
    return clock, "_INSTRUCTION_MAP" in vars(engine)


@pytest.mark.ranks
def test_a_pipelines_instructions_by_the_clock():
    first, last = launch(piped, ranks=2, device="cpu")
    for clock, replaced in (first, last):
        found = kinds(clock)
        assert (found["forward"], found["backward"], found["optimizer"], replaced) == (3, 3, 1, False)
        assert found["send"] == found["receive"] == 3
    ended = [
        next(box[3] for box in first[0].boxes if box[:2] == ("forward", str(micro))) for micro in (1, 2, 3)
    ]
    begun = [
        next(box[2] for box in last[0].boxes if box[:2] == ("forward", str(micro))) for micro in (1, 2, 3)
    ]
    assert all(
        end < start for end, start in zip(ended, begun)
    )  # a stage begins with what the stage before has done


def test_an_engine_is_watched_inside_the_block():
    with Clock("cpu") as clock:
        pass
    with pytest.raises(RuntimeError, match="belongs inside the clock's block"):
        clock.watch(torch.nn.Linear(1, 1))


class Event:
    """A CUDA event on a stream that does what it is given at once; times are those of a counter, in
    milliseconds."""

    clock = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.clock += 1
        self.at = Event.clock

    def elapsed_time(self, later):
        return later.at - self.at


@pytest.fixture
def alone():
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_on_a_gpu_times_are_those_of_events(monkeypatch, alone):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    with Clock("cuda") as clock:
        with clock.work("backward"):
            request = torch.distributed.all_reduce(torch.ones(2), async_op=True)
            torch.distributed.all_reduce(
                torch.ones(2), async_op=True
            )  # which nobody waits for by its request
        request.wait()
    begin = clock.boxes[0][2]  # a millisecond after the first event, which is the clock's own
    told = {
        (kind, label): (round(1e3 * (start - begin)), round(1e3 * (end - begin)))
        for kind, label, start, end in clock.boxes
    }
    expected = {
        ("backward", ""): (0, 3),
        ("all-reduce", "1"): (1, 6),
        ("waiting", "all-reduce"): (4, 5),
        ("all-reduce", "2"): (2, 7),
    }
    assert told == expected
    assert clock.overlap() == pytest.approx(2 / 6) and clock.cost > 0


def test_work_that_fails_is_noted_too():
    clock = Clock()
    with pytest.raises(ZeroDivisionError), clock.work("backward"):
        raise ZeroDivisionError
    assert [kind for kind, *_ in clock.boxes] == ["backward"]


# --- readings


BACKWARD, MESSAGE = ("backward", "1", 0, 10), ("all-reduce", "1", 5, 15)
OVERLAPS = [
    (made(BACKWARD, MESSAGE), 0.5),
    (
        made(BACKWARD, MESSAGE, ("all-reduce", "2", 4, 14)),
        6 / 11,
    ),  # the moments in which two are under way count once
    (
        made(BACKWARD, MESSAGE, ("waiting", "all-reduce", 8, 15), blocked=[(8, 15)]),
        0.3,
    ),  # it waits in the middle of its backward pass
    (
        made(BACKWARD, ("all-reduce", "1", 2, 6), blocked=[(2, 6)]),
        0,
    ),  # a message that returns when it has arrived
    (made(("forward", "1", 0, 20), MESSAGE), 1),
    (made(("dancing", "1", 0, 20), MESSAGE), 0),
    (made(BACKWARD), None),
    (made(("forward", "1", 0, 1), ("forward", "2", 4, 12), ("all-reduce", "1", 0, 10)), 0.7),
]


@pytest.mark.parametrize("clock, part", OVERLAPS)
def test_the_part_of_messages_that_is_hidden(clock, part):
    assert clock.overlap() == (part if part is None else pytest.approx(part))


def test_overlap_with_one_kind_of_work():
    clock = made(BACKWARD, ("forward", "1", 10, 20), MESSAGE)
    assert clock.overlap() == 1 and clock.overlap("backward") == 0.5


def test_a_trace_for_perfetto(tmp_path):
    first = made(
        BACKWARD,
        MESSAGE,
        ("all-reduce", "2", 6, 8),
        ("waiting", "all-reduce", 10, 15),
        sizes={("all-reduce", "1"): 4000},
    )
    path = module.chrome_trace(tmp_path / "trace.json", [first, made(("forward", "1", -1, 2), rank=1)])
    events = json.loads(path.read_text())["traceEvents"]
    drawn = {(event["pid"], event["name"]): event for event in events if event["ph"] == "X"}
    assert all(
        set(event) >= {"ph", "pid", "tid", "ts", "dur", "cat"} and event["ts"] >= 0
        for event in drawn.values()
    )
    assert (drawn[1, "forward 1"]["ts"], drawn[1, "forward 1"]["dur"]) == (0, 3e6) and drawn[0, "backward 1"][
        "ts"
    ] == 1e6
    assert drawn[0, "all-reduce 1"]["args"] == {"bytes": 4000} and "args" not in drawn[0, "all-reduce 2"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    threads = {name: names[pid, event["tid"]] for (pid, name), event in drawn.items()}
    assert threads == {
        "backward 1": "work",
        "all-reduce 1": "messages",
        "all-reduce 2": "messages, 2 at once",
        "waiting all-reduce": "waiting",
        "forward 1": "work",
    }
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [
        "rank 0",
        "rank 1",
    ]


def test_clocks_that_noted_nothing():
    with pytest.raises(ValueError, match="noted nothing: name work"):
        module.clock_rows([made()])


# --- refusals


def test_neither_a_ledger_nor_another_mode_nor_another_clock_goes_on_beside():
    from torch.utils.flop_counter import FlopCounterMode

    with (
        Ledger("cpu"),
        pytest.raises(RuntimeError, match="a Clock cannot be opened inside a Ledger: counting takes time"),
        Clock("cpu"),
    ):
        pass
    with (
        FlopCounterMode(display=False),
        pytest.raises(RuntimeError, match="inside a .*Flop.*: counting"),
        Clock("cpu"),
    ):
        pass
    with Clock("cpu"):
        with (
            pytest.raises(
                RuntimeError, match="a Ledger cannot be opened inside a Clock: counting takes time"
            ),
            Ledger("cpu"),
        ):
            pass
        with pytest.raises(RuntimeError, match="a Clock cannot be opened inside a Clock"), Clock("cpu"):
            pass
    assert not together._open
    with Ledger("cpu"), Ledger("cpu"):  # bytes may be counted twice
        pass


def beside_traffic():
    import deepspeed
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    said = []
    for outer, inner in ((Traffic, Clock), (Clock, Traffic)):
        try:
            with outer(), inner():
                said.append("nothing")
        except RuntimeError as error:
            said.append(str(error).partition(":")[0])
    return said, together._open


@pytest.mark.ranks
def test_nor_does_traffic():
    said = ["a Clock cannot be opened inside a Traffic", "a Traffic cannot be opened inside a Clock"]
    assert launch(beside_traffic, ranks=1, device="cpu") == [(said, [])]
