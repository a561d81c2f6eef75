"""Jobs that must fail: before any process starts, or in time, with the guilty rank and the cause in the
message's first line."""

import ctypes
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
import psutil
import pytest
from helpers import launch
from helpers.tools.launch import jobs, resources
from helpers.tools.launch.failures import LaunchError, RankError
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
        (TypeError, {"ranks": "four"}, "ranks must be a whole number from 1 to 64, not 'four'"),
        (TypeError, {"ranks": 2.5}, "ranks must be a whole number from 1 to 64, not 2.5"),
        (TypeError, {"ranks": True}, "ranks must be a whole number from 1 to 64, not True"),
        (
            ValueError,
            {"launcher": "torchrun"},
            'launcher must be None, "deepspeed" or "slurm", not \'torchrun\'',
        ),
        (ValueError, {"device": "tpu"}, 'device must be "cpu", "cuda" or None, not \'tpu\''),
        (ValueError, {"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        (ValueError, {"timeout": -1.5}, "timeout must be a positive number of seconds, not -1.5"),
        (ValueError, {"timeout": "soon"}, "timeout must be a positive number of seconds, not 'soon'"),
        (
            TypeError,
            {"arguments": {"lock": threading.Lock()}},
            "cannot be sent to the ranks (argument 'lock'): cannot pickle '_thread.lock' object",
        ),
    ],
)
def test_an_unusable_argument(no_start, error, options, message):
    with pytest.raises(error, match=re.escape(message) + "$"):
        launch(lambda **given: None, **options)


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
    monkeypatch.setattr(jobs, "free_memory", lambda: 350_000_000)
    with pytest.raises(
        MemoryError,
        match=r"^4 ranks need at least 0.4 GB and 0.3 GB is free: use at most 3 "
        r"ranks, or close other programs$",
    ):
        launch(lambda: None, ranks=4)


def gpus(monkeypatch, number):
    for module in (jobs, resources):
        monkeypatch.setattr(module, "gpu_count", lambda: number)


def test_a_gpu_where_there_is_none(no_start, monkeypatch):
    gpus(monkeypatch, 0)
    with pytest.raises(ValueError, match="needs a GPU, and there is none: leave device out to use the CPU"):
        launch(lambda: None, ranks=2, device="cuda")


def test_the_command_does_not_share_gpus(no_start, monkeypatch):
    gpus(monkeypatch, 1)
    with pytest.raises(
        ValueError,
        match="the deepspeed command gives every rank a GPU of its own: use at most 1 ranks, or leave "
        "launcher out",
    ):
        launch(lambda: None, ranks=2, device="cuda", launcher="deepspeed")


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


def raises_an_address():
    raise ValueError(f"{object()} on 127.0.0.1:{10000 + time.monotonic_ns() % 50000}")


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
        (raises, "rank 2 of 4 raised ValueError: seven", 'raise ValueError("seven")'),
        (raises_from, "rank 2 of 4 raised RuntimeError: eight", "caused by ValueError: seven"),
        (raises_own_class, "rank 2 of 4 raised Special: only this rank knows it", "in raises_own_class"),
        (raises_without_words, "rank 2 of 4 raised Silent: (its message cannot be shown: RuntimeError)", ""),
        (raises_an_address, "rank 2 of 4 raised ValueError: <object object at 0x...> on 127.0.0.1:...", ""),
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
        (killed, "rank 2 of 4 was killed by SIGKILL", ""),
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


@pytest.mark.parametrize("fault", [sleeps, holds_the_lock_in_python, holds_the_lock_in_c])
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
