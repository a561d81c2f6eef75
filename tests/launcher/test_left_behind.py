"""What ranks leave in /dev/shm and in the folder for temporary files goes with their job, however they end;
and processes that a function forks are no ranks.

That nothing is left, the fixture `nothing_is_left` looks at after each test (tests/launcher/conftest.py)."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

import cloudpickle
import psutil
import pytest
from helpers import DeepSpeedCommand, launch
from helpers.tools.launcher import leftovers
from helpers.tools.launcher.failures import RankError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def shared_block():
    return shared_memory.SharedMemory(create=True, size=100)


def loader():
    import torch

    batches = iter(torch.utils.data.DataLoader(torch.arange(100), num_workers=2))
    next(batches)
    return batches


def shared_files():
    import torch

    torch.multiprocessing.set_sharing_strategy("file_system")
    return torch.ones(10).share_memory_(), loader()


def semaphore():
    return multiprocessing.get_context("spawn").Lock()


def manager():
    return multiprocessing.get_context("spawn").Manager()


def folder():
    Path(tempfile.mkdtemp(), "a file").touch()
    return tempfile.TemporaryDirectory(), tempfile.mkdtemp()


LEFT = [shared_block, loader, shared_files, semaphore, manager, folder]


def returns():
    pass


def raises():
    raise ValueError("seven")


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def hangs():
    time.sleep(60)


def is_interrupted():
    if os.environ["RANK"] == "0":
        os.kill(int(os.environ["KERNEL"]), signal.SIGINT)
    time.sleep(60)


@pytest.mark.parametrize(
    "end", [returns, pytest.param(raises, marks=pytest.mark.smoke), is_killed, hangs, is_interrupted]
)
def test_nothing_is_left_of_what_a_rank_has_made(end, monkeypatch):
    monkeypatch.setenv("KERNEL", str(os.getpid()))
    before = sorted(os.listdir("/dev/shm"))

    def job():
        global held  # noqa: PLW0603 - it must live as long as the rank
        held = [make() for make in LEFT]
        end()

    if end is returns:
        launch(job, 2)
    else:
        with pytest.raises(KeyboardInterrupt if end is is_interrupted else RankError) as caught:
            launch(job, 2, timeout=20 if end is hangs else 60)
        assert end in (hangs, is_interrupted) or "hung" not in str(caught.value), caught.value
    assert not [name for name in os.listdir("/dev/shm") if name not in before]


OWN_BLOCK = """
import os
from multiprocessing import shared_memory
from helpers import launch

block = shared_memory.SharedMemory(create=True, size=8)
name = block.name

def job():
    theirs = shared_memory.SharedMemory(name=name)
    theirs.buf[int(os.environ["RANK"])] = 7
    theirs.close()

launch(job, 2)
value = list(block.buf[:2]), os.path.exists(f"/dev/shm/{name}")
block.close()
block.unlink()
"""


def test_shared_memory_of_the_kernel_outlives_the_ranks_that_use_it(kernels):
    (kernel,) = kernels()
    assert kernel.run(OWN_BLOCK) == [[7, 7], True]


MAKE_AND_DIE = """
import os
path = f"/dev/shm/torch_{os.getpid()}_7_0"
open(path, "w").close()
print(path)
"""


def test_shared_memory_that_another_notebook_of_this_user_made_meanwhile_stays():
    """Its maker has ended, but who was sent it still uses it."""
    folder, _ = leftovers.begin()
    made = subprocess.check_output([sys.executable, "-c", MAKE_AND_DIE], text=True, timeout=60)
    leftovers.remove(folder)
    theirs = Path(made.strip())
    assert theirs.exists()
    theirs.unlink()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_shared_memory_of_a_process_that_a_rank_has_started_goes(method):
    """Only what its rank has noted of it says whose it was: it ends before the job does."""

    def job():
        worker = multiprocessing.get_context(method).Process(target=exec, args=(MAKE_AND_DIE,))
        worker.start()
        worker.join()
        return f"/dev/shm/torch_{worker.pid}_7_0"

    assert not any(map(os.path.exists, launch(job, 2)))


def test_the_deepspeed_command_leaves_nothing_either():
    def job():
        global held  # noqa: PLW0603
        held = shared_block(), folder(), semaphore()
        if os.environ["RANK"] == "1":
            raise ValueError("seven")
        time.sleep(60)

    before = sorted(os.listdir("/dev/shm"))
    with pytest.raises(RankError, match="rank 1 of 2 raised ValueError: seven"):
        launch(job, 2, on=DeepSpeedCommand())
    assert not [name for name in os.listdir("/dev/shm") if name not in before]


def test_a_killed_kernel_leaves_nothing(kernels, tmp_path):
    (kernel,) = kernels()
    cell = "import os, sys, time\nfrom pathlib import Path\nfrom helpers import launch\n"
    cell += "from tests.launcher.test_left_behind import folder, semaphore, shared_block\n"
    cell += "def job():\n    held = shared_block(), folder(), semaphore()\n"
    cell += f"    Path({str(kernel.folder)!r}, 'ready-' + os.environ['RANK']).touch()\n"
    kernel.start(f"{cell}    time.sleep(60)\nlaunch(job, 2)")
    assert kernel.ready()
    os.kill(kernel.process.pid, signal.SIGKILL)


# --- Forked children


def child_returns():
    if os.fork() == 0:
        return "child"
    os.wait()


def child_raises():
    if os.fork() == 0:
        raise ValueError("in the child")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 1


def child_exits():
    if os.fork() == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 3


def child_of_a_child_returns():
    if os.fork() == 0:
        if os.fork() == 0:
            return "grandchild"
        return "child"
    os.wait()
    time.sleep(0.2)


def child_of_multiprocessing_returns():
    process = multiprocessing.get_context("fork").Process(target=lambda: 1)
    process.start()
    process.join()
    assert process.exitcode == 0


def child_outlives_the_rank():
    if os.fork() == 0:
        time.sleep(0.5)
        return "child"


@pytest.mark.parametrize(
    "fork",
    [
        child_returns,
        child_raises,
        child_exits,
        child_of_a_child_returns,
        child_of_multiprocessing_returns,
        child_outlives_the_rank,
    ],
)
def test_only_the_rank_reports(fork):
    def job():
        rank = os.getpid()
        child = fork()
        return child or os.getpid() == rank

    reports = launch(job, 2, timeout=60)
    assert reports == [True, True]
    assert [("in the child" in output) for output in reports.outputs] == [fork is child_raises] * 2


# --- Forked children of the kernel


def test_forked_children_of_the_kernel_launch_for_themselves():
    (forkserver,) = psutil.Process().children()
    results = multiprocessing.get_context("fork").Queue()

    def child(number):
        results.put(
            (number, list(launch(lambda: number + int(os.environ["RANK"]), 2, timeout=60, device="cpu")))
        )

    processes = [multiprocessing.get_context("fork").Process(target=child, args=(10 * n,)) for n in range(2)]
    for process in processes:
        process.start()
    assert launch(lambda: os.environ["RANK"], 2) == ["0", "1"]
    assert sorted(results.get(timeout=120) for _ in processes) == [(0, [0, 1]), (10, [10, 11])]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert forkserver.is_running() and launch(lambda: os.environ["RANK"], 2) == ["0", "1"]


def test_a_child_that_is_forked_during_a_launch_may_launch_too():
    results = multiprocessing.get_context("fork").Queue()
    thread = threading.Thread(target=lambda: launch(lambda: time.sleep(2), 1))
    thread.start()
    time.sleep(0.5)
    process = multiprocessing.get_context("fork").Process(
        target=lambda: results.put(list(launch(lambda: 7, 1, timeout=60, device="cpu")))
    )
    process.start()
    assert results.get(timeout=120) == [7]
    process.join(60)
    thread.join()
