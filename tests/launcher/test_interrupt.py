"""Ctrl-C, SIGTERM and SIGKILL of the kernel, whatever the ranks do: no rank outlives it by more than a
moment, and the next launch works."""

import os
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import psutil
import pytest
from helpers import launch
from helpers.tools.launcher.failures import LaunchError
from tests.launcher.support import PROMPT, SLACK, Notebook, eventually, running

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STATES = ("sleep", "barrier", "gil")
MOMENTS = (1, 2, 5)  # seconds after the first launch of a kernel: within the warm-up, or just after it


def interrupted(kernel, times):
    """Interrupt a kernel whose ranks are at work: no rank is blamed, none is left, and the next launch
    works."""
    kernel_itself, forkserver, *ranks = kernel.processes()
    assert len(ranks) == 4  # two, and what they have started
    now = time.monotonic()
    for _ in range(times):
        kernel.interrupt()
        time.sleep(0.05)
    assert kernel.answer() == [None, ["KeyboardInterrupt", ""]]
    assert time.monotonic() - now < PROMPT + SLACK
    assert eventually(lambda: not running(ranks))
    assert kernel.works()
    assert kernel.processes() == [kernel_itself, forkserver]


def test_an_interrupt_during_the_warm_up(kernels):
    trio = kernels(len(MOMENTS))
    for kernel in trio:
        kernel.occupy("sleep")
    started = time.monotonic()
    for kernel, moment in zip(trio, MOMENTS):
        time.sleep(max(started + moment - time.monotonic(), 0))
        kernel.interrupt()
        assert kernel.answer(PROMPT + SLACK) == [None, ["KeyboardInterrupt", ""]]
    for kernel in trio:
        assert kernel.works()
        assert len(kernel.processes()) == 2  # the kernel and its forkserver


def test_interrupts_during_a_job(kernels):
    (kernel,) = kernels()
    for state in STATES:
        for times in (1, 2, 5):
            kernel.occupy(state)
            assert kernel.ready()
            interrupted(kernel, times)
    for step in range(
        40
    ):  # from before the ranks are forked to after they have returned; now and then the job is quicker
        kernel.start("value = list(launch(lambda: __import__('os').environ['RANK'], 4))")
        time.sleep(step * 0.005)
        kernel.interrupt()
        value, error = kernel.answer()  # both, where the interrupt comes between the job's end and the cell's
        assert (
            value in (None, ["0", "1", "2", "3"])
            and error in (None, ["KeyboardInterrupt", ""])
            and (value or error)
        )
    assert kernel.works()
    assert len(kernel.processes()) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_kernel_during_a_job(kernels, number):
    trio = kernels(len(STATES))
    for kernel, state in zip(trio, STATES):
        kernel.occupy(state)
    for kernel in trio:
        assert kernel.ready()
        gone_with(kernel, number, least=6)  # kernel, forkserver, two ranks, and what they have started


def test_the_end_of_the_kernel_during_the_warm_up(kernels):
    trio = kernels(len(MOMENTS))
    for kernel in trio:
        kernel.occupy("sleep")
    started = time.monotonic()
    for kernel, moment, number in zip(trio, MOMENTS, (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
        time.sleep(max(started + moment - time.monotonic(), 0))
        assert eventually(lambda: len(kernel.processes()) >= 2, 60)  # noqa: B023 - kernel and forkserver; with GPUs it first asks torch how many
        gone_with(kernel, number, least=2)


def gone_with(kernel, number, least):
    """Kill a kernel: all that it has started is gone a moment later."""
    processes = kernel.processes()
    assert len(processes) >= least
    os.kill(kernel.process.pid, number)
    assert eventually(lambda: not running(processes)), running(processes)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_forkserver_that_dies(number, tmp_path):
    """Its job fails and ends with it, and the next launch starts another; one that dies idle is not even
    noticed."""

    def job(ready):
        if (
            number == signal.SIGTERM
        ):  # what a rank has started ends only if the forkserver can still see to it
            subprocess.Popen(["sleep", "60"])
        ready.touch()
        time.sleep(60)

    (forkserver,) = psutil.Process().children()
    ready = tmp_path / "ready"
    killer = threading.Thread(target=lambda: eventually(ready.exists) and os.kill(forkserver.pid, number))
    killer.start()
    with pytest.raises(LaunchError, match="^the forkserver has ended; the next launch starts a new one"):
        launch(job, 1, {"ready": ready}, timeout=60)
    killer.join()
    if number == signal.SIGKILL:
        assert launch(lambda: os.environ["RANK"], 2) == ["0", "1"]
        (forkserver,) = psutil.Process().children()
        os.kill(forkserver.pid, number)
        assert launch(lambda: os.environ["RANK"], 2) == ["0", "1"]


def test_a_jupyter_kernel(tmp_path):
    """Interrupt and restart, as the buttons of JupyterLab do."""
    pytest.importorskip("ipykernel")
    job = "import os, pathlib, time\nfrom helpers import launch\ndef job():\n"
    job += f"    pathlib.Path({str(tmp_path)!r}, 'ready-' + os.environ['RANK']).touch()\n    time.sleep(60)\n"
    works = (
        "from helpers import launch\nassert launch(lambda: __import__('os').environ['RANK'], 2) == ['0', '1']"
    )
    with Notebook() as notebook:
        manager, client = notebook.manager, notebook.client

        def occupy():
            for file in tmp_path.iterdir():
                file.unlink()
            request = client.execute(
                job + "launch(job, 2)", stop_on_error=False
            )  # else what comes just after the interrupt may be aborted too
            assert eventually(lambda: len(list(tmp_path.iterdir())) == 2, 60)
            return request

        request = occupy()
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=PROMPT + SLACK))["parent_header"]["msg_id"] != request:
            pass
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert notebook.run(works)[0]["status"] == "ok"
        occupy()
        processes = notebook.processes()
        manager.restart_kernel()
        assert eventually(lambda: not running(processes)), running(processes)
        client.wait_for_ready(timeout=60)
        assert notebook.run(works)[0]["status"] == "ok"
