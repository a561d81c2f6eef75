"""Jobs that must fail: before any process starts, or in time, with the guilty rank and the cause in the
message's first line."""

import ctypes
import fractions
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import cloudpickle
import numpy
import psutil
import pytest
import torch
from helpers import DeepSpeedCommand, Machines, SlurmNodes, launch
from helpers.tools.launcher import jobs, resources
from helpers.tools.launcher.failures import LaunchError, RankError
from tests.launcher.support import PROMPT, SLACK, crowded, eventually, running, start_in_a_session_of_its_own

cloudpickle.register_pickle_by_value(sys.modules[__name__])

VARIES = re.compile(r"0x[0-9a-f]{6,}|127\.0\.0\.1\W{1,3}\d|:\d{4,5}\b|ipykernel_\d")


# --- Before any process starts


@pytest.fixture
def no_start(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a job was started")

    monkeypatch.setattr(jobs, "ForkedJob", refuse)
    monkeypatch.setattr(jobs, "CommandJob", refuse)


@pytest.mark.parametrize(
    "error, options, message",
    [
        (ValueError, {"ranks": 0}, "ranks must be from 1 to 64, not 0"),
        (ValueError, {"ranks": -1}, "ranks must be from 1 to 64, not -1"),
        (ValueError, {"ranks": 65}, "ranks must be from 1 to 64, not 65"),
        (TypeError, {"ranks": "four"}, "ranks must be from 1 to 64, not 'four'"),
        (TypeError, {"ranks": 2.5}, "ranks must be from 1 to 64, not 2.5"),
        (TypeError, {"ranks": True}, "ranks must be from 1 to 64, not True"),
        (ValueError, {"device": "tpu"}, 'device must be "cpu", "cuda" or None, not \'tpu\''),
        (ValueError, {"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        (ValueError, {"timeout": -1.5}, "timeout must be a positive number of seconds, not -1.5"),
        (ValueError, {"timeout": "soon"}, "timeout must be a positive number of seconds, not 'soon'"),
        (TypeError, {"ranks": 2.0}, "ranks must be from 1 to 64, not 2.0"),
        (TypeError, {"ranks": "2"}, "ranks must be from 1 to 64, not '2'"),
        (
            TypeError,
            {"ranks": numpy.float64(2)},
            "ranks must be from 1 to 64, not np.float64(2.0)",
        ),
        (TypeError, {"ranks": None}, "ranks must be from 1 to 64, not None"),
        (ValueError, {"ranks": 10**5000}, "ranks must be from 1 to 64, not a number of thousands"),
        (ValueError, {"timeout": float("nan")}, "timeout must be a positive number of seconds, not nan"),
        (ValueError, {"timeout": -(10**400)}, "timeout must be a positive number of seconds, not -1000"),
        (ValueError, {"timeout": float("-inf")}, "timeout must be a positive number of seconds, not -inf"),
        (ValueError, {"timeout": True}, "timeout must be a positive number of seconds, not True"),
        (ValueError, {"timeout": None}, "timeout must be a positive number of seconds, not None"),
        (ValueError, {"timeout": [3]}, "timeout must be a positive number of seconds, not [3]"),
        (
            TypeError,
            {"arguments": [1]},
            'arguments must be a dict of keyword arguments such as {"stage": 2}, not [1]',
        ),
        (TypeError, {"arguments": ["ab"]}, "arguments must be a dict"),
        (TypeError, {"arguments": 0}, "arguments must be a dict"),
        (
            TypeError,
            {"arguments": {1: 2}},
            "arguments must have strings as keys, the names of parameters, not 1",
        ),
        (ValueError, {"device": numpy.ones(2)}, "device must be"),
        (
            TypeError,
            {"on": 3},
            "on must be Machines or what their place(...) returns, SlurmNodes(...), Hosts",
        ),
        (TypeError, {"on": "slurm"}, "on must be Machines or what"),
        (TypeError, {"on": Machines}, "on must be Machines or what"),
        (TypeError, {"on": SlurmNodes}, "on must be Machines or what"),
        (
            TypeError,
            {"launcher": None},
            "launch takes no launcher= any more: write on=DeepSpeedCommand(), on=",
        ),
        (
            TypeError,
            {"command": True},
            "launch takes no command= any more: write on=DeepSpeedCommand(show=True)",
        ),
        (TypeError, {"place": 3}, "launch takes no place= any more: write on=machines"),
        (TypeError, {"hostfile": "hosts"}, 'launch takes no hostfile= any more: write on=Hosts("hostfile")'),
        (TypeError, {"ssh": False}, 'launch takes no ssh= any more: write on=Hosts("hostfile", ssh=False)'),
        (TypeError, {"nodes": 2}, "launch takes no nodes= any more: write on=SlurmNodes(2)"),
        (TypeError, {"gpus": 2}, "launch takes no gpus= any more: write on=SlurmNodes(2, gpus=4)"),
        (TypeError, {"account": "a"}, "launch takes no account= any more: write on=SlurmNodes(2, account="),
        (
            TypeError,
            {"partition": "p"},
            "launch takes no partition= any more: write on=SlurmNodes(2, partition=",
        ),
        (TypeError, {"time": 5}, "launch takes no time= any more: write on=SlurmNodes(2, time="),
        (TypeError, {"folder": "."}, "launch takes no folder= any more: write on=SlurmNodes(2, folder="),
        (TypeError, {"rank": 2}, "launch takes no argument 'rank'"),
        (
            TypeError,
            {"arguments": {"lock": threading.Lock()}},
            "cannot be sent to the ranks (argument 'lock'): cannot pickle '_thread.lock' object",
        ),
    ],
)
def test_an_unusable_argument(no_start, error, options, message):
    with pytest.raises(error, match="^(<lambda> )?" + re.escape(message)):
        launch(lambda **given: None, **options)


@pytest.mark.parametrize("ranks", [numpy.int64(1), numpy.uint8(1), torch.tensor(1)])
@pytest.mark.parametrize("timeout", [numpy.float32(60), 10**400, float("inf"), 1e308, fractions.Fraction(60)])
def test_other_kinds_of_numbers_are_numbers(ranks, timeout):
    assert launch(lambda: 7, ranks, timeout=timeout, device="cpu") == [7]


def test_a_function_that_cannot_be_sent(no_start):
    guard, harmless = threading.Lock(), 1

    def job():
        with guard:
            return harmless

    with pytest.raises(
        TypeError,
        match=r"^job cannot be sent to the ranks \(the variable 'guard', which the function uses\): "
        r"cannot pickle",
    ):
        launch(job)


def test_a_variable_without_a_value_does_not_hide_the_culprit(no_start):
    guard = threading.Lock()

    def job(lock=guard):
        return later

    with pytest.raises(
        TypeError, match="^job cannot be sent to the ranks: cannot pickle '_thread.lock' object"
    ):
        launch(job)
    later = None


def test_no_function(no_start):
    with pytest.raises(TypeError, match="launch needs a function to run in every rank, not 7"):
        launch(7)


def test_more_ranks_than_memory(no_start, monkeypatch):
    monkeypatch.setattr(resources, "free_memory", lambda: 350_000_000)
    with pytest.raises(
        MemoryError,
        match=r"^4 ranks need at least 0.4 GB and 0.3 GB is free: use at most 3 "
        r"ranks, or close other programs$",
    ):
        launch(lambda: None, ranks=4)


def gpus(monkeypatch, number):
    monkeypatch.setattr(resources, "gpu_count", lambda: number)


def test_a_gpu_where_there_is_none(no_start, monkeypatch):
    gpus(monkeypatch, 0)
    with pytest.raises(ValueError, match="needs a GPU, and there is none: leave device out to use the CPU"):
        launch(lambda: None, ranks=2, device="cuda")


def test_the_command_does_not_share_gpus(no_start, monkeypatch):
    gpus(monkeypatch, 1)
    with pytest.raises(
        ValueError,
        match="the deepspeed command gives every rank a GPU of its own: use at most 1 ranks, or leave on out",
    ):
        launch(lambda: None, ranks=2, device="cuda", on=DeepSpeedCommand())


def test_a_second_launch_while_one_runs(tmp_path):
    started, go_on = tmp_path / "started", tmp_path / "go-on"

    def wait():
        started.touch()
        while not go_on.exists():
            time.sleep(0.01)
        return "done"

    reports = []
    thread = threading.Thread(target=lambda: reports.extend(launch(wait, 1)))
    thread.start()
    try:
        assert eventually(started.exists)
        with pytest.raises(
            LaunchError, match="a launch is running in this kernel already: wait for it, or interrupt it"
        ):
            launch(lambda: None, 1)
    finally:
        go_on.touch()
        thread.join()
    assert reports == ["done"]


# --- In time


def meet():
    """In a rank: join the others; the guilty one is rank 2."""
    import deepspeed
    import torch.distributed

    deepspeed.init_distributed()
    torch.distributed.barrier()
    return torch.distributed


def guilty_first(fault, moment):
    """Rank 2 notes the time and commits the fault, and the others sit in a collective."""
    group = meet()
    if group.get_rank() == 2:
        Path(moment).write_text(str(time.monotonic()))
        return fault()
    group.barrier()


def raises():
    raise ValueError("seven")


def raises_from():
    try:
        raises()
    except ValueError as error:
        raise RuntimeError("eight") from error


def raises_own_class():
    class Special(Exception):
        pass

    raise Special("only this rank knows it")


def raises_without_words():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    raise Silent


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def leaves_quietly():
    os._exit(0)


def leaves_with_words():
    print("last words", flush=True)
    os._exit(3)


def calls_exit():
    sys.exit(3)


def segfault():
    ctypes.string_at(0)


def returns_lock():
    return threading.Lock()


def refused():
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open("http://localhost:1")


def pipe_of_its_own():
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")


def raises_words_of_a_network():
    raise RuntimeError("Connection reset by peer, says my server")


# These take the same way as `raises`: once is enough.
SELDOM = (
    raises_from,
    raises_own_class,
    raises_without_words,
    raises_words_of_a_network,
    pipe_of_its_own,
    calls_exit,
)


def fail(job, arguments, ranks=4, **options):
    """The error of a launch, and the clock when it was raised."""
    with pytest.raises(RankError) as caught:
        launch(job, ranks, arguments, **options)
    now = time.monotonic()
    assert not VARIES.search(str(caught.value)), caught.value
    assert len(caught.value.outputs) == ranks
    return caught.value, now


@pytest.mark.parametrize(
    "fault, first_line, more",
    [
        pytest.param(
            raises,
            "rank 2 of 4 raised ValueError: seven",
            'raise ValueError("seven")',
            marks=pytest.mark.smoke,
        ),
        (raises_from, "rank 2 of 4 raised RuntimeError: eight", "caused by ValueError: seven"),
        (raises_own_class, "rank 2 of 4 raised Special: only this rank knows it", "in raises_own_class"),
        (raises_without_words, "rank 2 of 4 raised Silent: (its message cannot be shown: RuntimeError)", ""),
        (
            refused,
            "rank 2 of 4 raised URLError: <urlopen error [Errno 111] Connection refused>",
            "urllib.request.build_opener",
        ),
        (
            pipe_of_its_own,
            "rank 2 of 4 raised BrokenPipeError: [Errno 32] Broken pipe",
            'os.write(writer, b"x")',
        ),
        (
            raises_words_of_a_network,
            "rank 2 of 4 raised RuntimeError: Connection reset by peer, says my server",
            "raise RuntimeError",
        ),
        pytest.param(killed, "rank 2 of 4 was killed by SIGKILL", "", marks=pytest.mark.smoke),
        (leaves_quietly, "rank 2 of 4 left with exit status 0 before its function returned", ""),
        (leaves_with_words, "rank 2 of 4 left with exit status 3 before its function returned", "last words"),
        (calls_exit, "rank 2 of 4 raised SystemExit: 3", "in calls_exit"),
        (segfault, "rank 2 of 4 was killed by SIGSEGV", "ctypes.string_at(0)"),
        (
            returns_lock,
            "rank 2 of 4 returned a lock, which cannot be sent back: TypeError: cannot pickle "
            "'_thread.lock' object",
            "plain data",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_rank_fails(fault, first_line, more, tmp_path):
    moment, messages = tmp_path / "moment", set()
    for _ in range(1 if fault in SELDOM else 3):
        error, now = fail(guilty_first, {"fault": fault, "moment": str(moment)})
        assert now - float(moment.read_text()) < PROMPT + SLACK
        messages.add(str(error))
        assert str(error).splitlines()[0] == first_line
        assert more in str(error) and error.rank == 2
    assert len(messages) == 1


WORDS = ("a[::1], 128 rows", "server 127.0.0.1:8080 at 0x7f00", "localhost: 3 of 4", "gloo says [::1]:29500")


@pytest.mark.parametrize("words", WORDS)
def test_the_words_of_a_learner_stay_as_they_are(words):
    def job(inner):
        if inner == 0:
            raise ValueError(words)
        if inner == 1:
            int(words)
        raise ExceptionGroup("several", [ValueError(words)])

    for inner in range(3):
        with pytest.raises(RankError) as caught:
            launch(job, 1, {"inner": inner})
        assert words in str(caught.value)


def with_everything():
    error = ExceptionGroup("several", [ValueError("inner"), ExceptionGroup("more", [KeyError("deep")])])
    error.add_note("a note of mine")
    error.exceptions[0].add_note("a note of the inner one")
    raise error


def from_a_task_group():
    import asyncio

    async def work():
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    async def fails():
        raise ValueError("the task's own")

    asyncio.run(work())


def in_a_circle():
    first, second = ValueError("first"), KeyError("second")
    first.__context__, second.__context__ = second, first
    first.__cause__, second.__cause__ = second, first
    raise first


def with_a_long_context():
    error = ValueError("number 0")
    for number in range(1, 20_000):
        later = ValueError(f"number {number}")
        later.__context__ = error
        error = later
    raise error


def with_a_long_message():
    raise ValueError("beginning " + 50_000_000 * "x" + " end")


def exits_with_a_long_message():
    sys.exit(50_000_000 * "x")


def with_a_long_note():
    error = ValueError("short")
    error.add_note(50_000_000 * "x")
    raise error


def with_a_message_that_exits():
    class Sly(Exception):
        def __str__(self):
            raise SystemExit(0)

    raise Sly


def with_a_message_of_its_own_class():
    class Word(str):
        pass

    class Wordy(Exception):
        def __str__(self):
            return Word("a word")

    raise Wordy


def with_half_a_character():
    raise ValueError("half \ud83d of one")


def of_a_class_that_hides_its_name():
    class Hider(type):
        @property
        def __name__(cls):
            raise RuntimeError

    class Hidden(Exception, metaclass=Hider):
        pass

    raise Hidden("words")


def with_a_line_that_cannot_be_parsed():
    exec("x = (1,\ny = 2")


def that_cannot_be_pickled():
    error = ValueError("with a lock")
    error.lock = threading.Lock()
    raise error


@pytest.mark.parametrize(
    "fault, parts",
    [
        (
            with_everything,
            ["raised ExceptionGroup: several", "a note of mine", "member 1: ValueError: inner"],
        ),
        (
            with_everything,
            ["a note of the inner one", "member 2: ExceptionGroup: more", "member 1: KeyError: 'deep'"],
        ),
        (from_a_task_group, ["member 1: ValueError: the task's own", 'raise ValueError("the task']),
        (in_a_circle, ["raised ValueError: first", "caused by KeyError: 'second'"]),
        (with_a_long_context, ["raised ValueError: number 19999"]),
        (with_a_long_message, ["raised ValueError: beginning xxx", "more characters ...]", "xxx end"]),
        (exits_with_a_long_message, ["raised SystemExit: xxx", "more characters ...]"]),
        (with_a_long_note, ["raised ValueError: short", "more characters ...]"]),
        (with_a_message_that_exits, ["raised Sly: (its message cannot be shown: SystemExit)"]),
        (with_a_message_of_its_own_class, ["raised Wordy: a word"]),
        (with_half_a_character, ["raised ValueError: half \\ud83d of one"]),
        (of_a_class_that_hides_its_name, ["raised", "own methods fail"]),
        (with_a_line_that_cannot_be_parsed, ["raised SyntaxError: '(' was never closed", "x = (1,"]),
        (that_cannot_be_pickled, ["raised ValueError: with a lock"]),
    ],
)
def test_what_belongs_to_an_exception_is_shown(fault, parts):
    with pytest.raises(RankError) as caught:
        launch(fault, 1)
    message = str(caught.value)
    assert message.startswith("rank 0 of 1 raised ") and len(message) < 20_000
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize("frozen", [False, True])
def test_an_object_with_slots_says_how_it_can_come_back(frozen):
    name = {"__name__": "__main__"}
    exec(
        f"from dataclasses import dataclass\n@dataclass(slots=True, frozen={frozen})\nclass P:\n  x: int = 1",
        name,
    )
    point = name["P"]
    if frozen:
        assert launch(lambda: point(), 1) == [point()]
        return
    with pytest.raises(RankError, match="cannot be sent back.*\n.*__slots__.*slots=True"):
        launch(lambda: point(), 1)


def waits_on_a_handle(group):
    import torch

    group.all_reduce(torch.ones(4), async_op=True).wait()


def receives(group):
    import torch

    group.recv(torch.ones(4), 2)


def gives_up_with_words_of_its_own(group):
    try:
        group.barrier()
    except RuntimeError:
        raise ValueError("the others have gone") from None


@pytest.mark.parametrize("wait", [waits_on_a_handle, receives, gives_up_with_words_of_its_own])
@pytest.mark.parametrize("end", [killed, leaves_with_words])
def test_a_rank_that_noticed_the_end_of_another_is_not_blamed(wait, end):
    def job():
        group = meet()
        end() if group.get_rank() == 2 else wait(group)

    for _ in range(2):
        assert fail(job, {})[0].rank == 2


def test_the_rank_that_failed_first_is_named():
    def job():
        rank = meet().get_rank()
        time.sleep(0.3 if rank == 0 else 0)
        if rank != 1:
            raise ValueError(rank) if rank else KeyError("later")
        time.sleep(60)

    assert str(fail(job, {})[0]).startswith("rank 2 of 4 raised ValueError: 2\n")


def test_a_connection_that_is_closed_while_no_rank_fails():
    def job():
        group = meet()
        group.destroy_process_group() if group.get_rank() == 2 else group.barrier()

    error, _ = fail(job, {}, 3)
    assert re.match(
        "rank [01] of 3 lost its connection to another rank: RuntimeError: .*(closed by "
        "peer|reset by peer|[Bb]roken pipe)",
        str(error),
    ), error
    assert "group.barrier()" in str(error) and "Hint: no rank failed before" in str(error)


def test_all_ranks_raise_the_same():
    def job():
        raise KeyError("same")

    messages = {str(fail(job, {})[0]).splitlines()[0] for _ in range(5)}
    assert messages == {"rank 0 of 4 raised KeyError: 'same'"}


def test_the_outputs_of_a_failed_job_are_kept(capsys):
    def job():
        print("rank", os.environ["RANK"])
        if os.environ["RANK"] == "1":
            raise ValueError

    error, _ = fail(job, {}, 2)
    assert str(error).startswith("rank 1 of 2 raised ValueError\n")
    assert error.outputs == ["rank 0\n", "rank 1\n"] and capsys.readouterr().out == "rank 0\n"


def sleeps():
    time.sleep(60)


def holds_the_lock_in_python():
    re.match("(a+)+$", "a" * 40 + "b")


def holds_the_lock_in_c():
    ctypes.PyDLL(None).sleep(60)


@pytest.mark.parametrize(
    "fault",
    [sleeps, holds_the_lock_in_python, pytest.param(holds_the_lock_in_c, marks=pytest.mark.smoke)],
)
def test_one_rank_hangs(fault, tmp_path):
    messages, timeout = set(), crowded(3)
    for _ in range(3 if fault is sleeps else 1):
        started = time.monotonic()
        error, now = fail(guilty_first, {"fault": fault, "moment": str(tmp_path / "moment")}, timeout=timeout)
        assert timeout <= now - started < timeout + PROMPT + SLACK
        messages.add(str(error))
    lines = str(error).splitlines()
    assert (
        lines[0] == f"rank 2 of 4 hung: still running after {timeout} s, in no collective, while ranks 0, 1, "
        "3 waited for it"
    )
    assert [line for line in lines if line.startswith("  rank")] == [f"  rank {rank}:" for rank in range(4)]
    assert f"in {fault.__name__}" in str(error) and "in barrier" in str(error)
    assert len(messages) == 1 and error.rank == 2


def sends_another_size():
    import torch

    group = meet()
    group.all_reduce(torch.ones(1000 if group.get_rank() == 1 else 10))


def test_messages_of_different_sizes_are_explained():
    error, _ = fail(sends_another_size, {}, 2)
    assert "Hint: a message had another size than the rank expected" in str(error)


def alone_in_collective(others):
    """Rank 2 enters a collective; the others return, or wait in another one."""
    import torch

    group = meet()
    if group.get_rank() == 2:
        group.all_reduce(torch.ones(4))
    elif others == "broadcast":
        group.broadcast(torch.ones(4), 2)
    return group.get_rank()


@pytest.mark.parametrize(
    "others, first_line",
    [
        ("return", "rank 2 of 4 hung in all_reduce, which ranks 0, 1, 3 never entered (stopped after {} s)"),
        ("broadcast", "rank 2 of 4 hung in all_reduce, which no other rank entered (stopped after {} s)"),
    ],
)
def test_a_collective_that_nobody_else_enters(others, first_line):
    timeout, started = crowded(3), time.monotonic()
    error, now = fail(alone_in_collective, {"others": others}, timeout=timeout)
    assert timeout <= now - started < timeout + PROMPT + SLACK
    lines = str(error).splitlines()
    assert lines[0] == first_line.format(timeout)
    stuck = (2,) if others == "return" else (0, 1, 2, 3)
    for rank in range(4):
        if rank in stuck:
            place, source, collective = lines[lines.index(f"  rank {rank}:") + 1 :][:3]
            assert "in alone_in_collective" in place
            assert collective.endswith("in all_reduce" if rank == 2 else "in broadcast")
        else:
            assert f"  rank {rank}: had returned" in lines


def on_a_handle(group):
    group.all_reduce(torch.ones(4), async_op=True).wait()


def on_a_message(group):
    request = group.irecv(torch.ones(4), 1)
    request.wait()


def on_a_batch(group):
    operations = [group.P2POp(group.irecv, torch.ones(4), 1), group.P2POp(group.irecv, torch.ones(4), 1)]
    for request in group.batch_isend_irecv(operations):
        request.wait()


def on_a_barrier(group):
    group.barrier(async_op=True).wait()


def on_a_monitored_barrier(group):
    group.monitored_barrier()


def on_a_scattered_sum(group):
    group.reduce_scatter_tensor(torch.ones(2), torch.ones(4), async_op=True).wait()


def on_a_future(group):
    group.all_reduce(torch.ones(4), async_op=True).get_future().wait()


def on_a_functional_collective(group):
    import torch.distributed._functional_collectives as functional

    (functional.all_reduce(torch.ones(4), "sum", group.group.WORLD) + 1).sum().item()


def on_a_tensor(group):
    import torch

    operators = torch.ops._c10d_functional
    operators.wait_tensor(operators.all_reduce(torch.ones(4), "sum", group.group.WORLD.group_name))


def on_a_coalesced_collective(group):
    with group._coalescing_manager(async_ops=True) as coalesced:
        group.all_reduce(torch.ones(4))
        group.all_reduce(torch.ones(4))
    coalesced.wait()


def on_deepspeeds_handle(group):
    import deepspeed

    deepspeed.comm.broadcast(torch.ones(4), 1, async_op=True).wait()


def in_the_backward_of_ddp(group, model):
    model(torch.ones(4)).sum().backward()


@pytest.mark.parametrize(
    "wait, collective",
    [
        pytest.param(on_a_handle, "all_reduce", marks=pytest.mark.smoke),
        (on_a_message, "irecv"),
        (on_a_batch, "irecv"),
        (on_a_barrier, "barrier"),
        (on_a_monitored_barrier, "monitored_barrier"),
        (on_a_scattered_sum, "reduce_scatter_tensor"),
        (on_a_future, "all_reduce"),
        (on_a_functional_collective, "all_reduce"),
        (on_a_tensor, "all_reduce"),
        (on_a_coalesced_collective, "all_reduce"),
        (on_deepspeeds_handle, "broadcast"),
        (in_the_backward_of_ddp, "all_reduce"),
    ],
)
def test_a_wait_inside_c_is_told_from_other_work(wait, collective):
    def job(others):
        group = meet()
        model = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))] * (
            wait is in_the_backward_of_ddp
        )
        if group.get_rank() == 0:
            wait(group, *model)
        elif others == "sleep":
            time.sleep(60)

    timeout = crowded(2)
    returned = str(fail(job, {"others": "return"}, 2, timeout=timeout)[0])
    first = f"rank 0 of 2 hung in {collective}, which rank 1 never entered (stopped after {timeout} s)"
    assert returned.splitlines()[0] == first and f"in {wait.__name__}" in returned
    asleep = str(fail(job, {"others": "sleep"}, 2, timeout=timeout)[0])
    assert asleep.startswith(
        f"rank 1 of 2 hung: still running after {timeout} s, in no collective, while rank 0 waited"
    )


def test_a_rank_with_a_message_under_way_that_does_not_wait_for_it_is_in_no_collective():
    def job():
        group = meet()
        handle = group.all_reduce(torch.ones(4), async_op=True) if group.get_rank() == 0 else None
        time.sleep(60)
        return handle

    error, _ = fail(job, {}, 2, timeout=crowded(2))
    assert str(error).startswith("ranks 0, 1 of 2 hung: still running")


def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def ignores_signals():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    time.sleep(60)


def blocks_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(60)


@pytest.mark.parametrize(
    "fault, answers", [(is_stopped, True), (ignores_signals, True), (blocks_signals, False)]
)
def test_a_rank_that_does_not_answer_is_not_waited_for(fault, answers):
    timeout, started = crowded(2), time.monotonic()
    error, now = fail(fault, {}, 1, timeout=timeout)
    assert now - started < timeout + 4 + SLACK / 3
    assert (
        str(error).startswith("rank 0 of 1 hung: still running")
        and (f"in {fault.__name__}" in str(error)) == answers
    )


# --- What a rank has started, and a forkserver that dies


def test_what_a_failed_rank_has_started_is_stopped(tmp_path):
    def job():
        subprocess.Popen(["sleep", "60"])
        raise ValueError("after a start")

    error, _ = fail(job, {}, 2)
    assert str(error).startswith("rank 0 of 2 raised ValueError: after a start")


def test_what_a_vanished_rank_has_started_is_stopped():
    def job():
        if os.environ["RANK"] == "1":
            subprocess.Popen(["sleep", "60"])
            os._exit(0)

    error, _ = fail(job, {}, 2)
    assert str(error) == "rank 1 of 2 left with exit status 0 before its function returned"


def test_what_a_rank_that_returned_has_started_is_stopped():
    assert launch(lambda: subprocess.Popen(["sleep", "60"]).returncode, 2) == [None, None]


def test_what_a_rank_that_returned_has_started_in_another_session_is_stopped():
    started = launch(lambda: start_in_a_session_of_its_own(), 2)
    assert eventually(
        lambda: not running(psutil.Process(pid) for pids in started for pid in pids if psutil.pid_exists(pid))
    )


@pytest.mark.parametrize("end", [killed, leaves_quietly, raises])
def test_what_a_failed_rank_has_started_in_another_session_is_stopped(end, tmp_path):
    def job():
        if os.environ["RANK"] == "1":
            (tmp_path / "started").write_text(" ".join(map(str, start_in_a_session_of_its_own())))
            end()

    assert fail(job, {}, 2)[0].rank == 1
    started = [int(pid) for pid in (tmp_path / "started").read_text().split()]
    assert eventually(lambda: not running(psutil.Process(pid) for pid in started if psutil.pid_exists(pid)))


def test_the_end_of_a_rank_stops_what_it_has_started_and_no_other(tmp_path):
    """Rank 1 ends while rank 0 runs on, which has a program whose parent has ended too."""
    started, seen = tmp_path / "started", tmp_path / "seen"

    def job():
        if os.environ["RANK"] == "1":
            pids = start_in_a_session_of_its_own()
            while not started.exists():
                time.sleep(0.01)
            started.write_text(" ".join(map(str, pids)))
            os._exit(0)
        own = int(
            subprocess.run(
                ["sh", "-c", "sleep 60 >/dev/null & echo $!"], stdout=subprocess.PIPE, timeout=60
            ).stdout
        )
        while psutil.Process(own).status() != psutil.STATUS_SLEEPING:  # it starts
            time.sleep(0.01)
        started.touch()
        while not (pids := started.read_text().split()) or any(psutil.pid_exists(int(pid)) for pid in pids):
            time.sleep(0.01)
        seen.write_text(psutil.Process(own).status())

    assert fail(job, {}, 2)[0].rank == 1
    assert seen.read_text() == psutil.STATUS_SLEEPING


def test_an_orphan_that_ends_is_no_zombie():
    def job():
        subprocess.run(["sh", "-c", "sleep 0.1 &"], timeout=60)
        forkserver = psutil.Process(os.getppid())
        return eventually(lambda: forkserver.children() == [psutil.Process()])

    assert launch(job, 1) == [True]
