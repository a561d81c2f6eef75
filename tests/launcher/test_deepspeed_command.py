"""The other back end, the real `deepspeed` command.  A start takes long, so each of these jobs shows several
things."""

import errno
import json
import os
import signal
import socket
import sys
import tempfile
import time

import cloudpickle
import psutil
import pytest
from helpers import DeepSpeedCommand, launch
from helpers.tools.launcher.failures import LaunchError, RankError
from tests.launcher.support import LOOPBACK, PROMPT, SLACK, all_reduced, crowded, eventually, ours, running

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def private_folders():
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("launch-")]


@pytest.mark.smoke
def test_results_and_outputs_are_those_of_the_default(commanded):
    reports, printed = commanded
    assert [report["total"] for report in reports] == launch(
        lambda: all_reduced(float(os.environ["RANK"])), 2
    )
    assert [output.splitlines()[-1] for output in reports.outputs] == ["rank 0 writes", "rank 1 writes"]
    assert "rank 0 writes" in printed and "rank 1 writes" not in printed


def test_the_command_line_is_printed(commanded):
    reports, printed = commanded
    assert reports.command[:3] == ["deepspeed", "--num_accelerators", "2"]
    assert f"$ {' '.join(reports.command[:-1])} <a private folder>\n" in printed.replace("\\\n    ", "")


def test_its_folder_is_gone(commanded):
    reports, _ = commanded
    assert reports[0]["folder"].startswith("launch-")
    assert private_folders() == []


def test_the_command_too_names_loopback(commanded):
    loopback = "lo" if sys.platform.startswith("linux") else "lo0"
    for report in commanded[0]:
        assert report["interfaces"] == [loopback] * 3
    assert set(commanded[0][1]["listening"]) <= LOOPBACK  # rank 0 also serves the command's own port


def test_the_private_folder_of_the_command(commanded):
    reports, _ = commanded
    for report in reports:
        modes = report["modes"]
        assert modes.pop(report["folder"]) == 0o700
        assert modes["payload"] == 0o600
        assert set(modes.values()) == {0o600}


def test_the_command_too_carries_large_tensors_there_and_back(commanded):
    for rank, report in enumerate(commanded[0]):
        assert report["carried"].tolist() == 400_000 * [1.0 + rank]


def test_what_its_ranks_that_returned_have_started_in_another_session_is_stopped(commanded):
    started = [pid for report in commanded[0] for pid in report["started"]]
    assert len(started) == 4
    assert eventually(lambda: not running(psutil.Process(pid) for pid in started if psutil.pid_exists(pid)))


def test_the_guilty_rank_is_named(tmp_path):
    def job(moment):
        import subprocess

        import torch.distributed

        all_reduced(1.0)
        if os.environ["RANK"] == "1":
            subprocess.Popen(["sleep", "60"])
            moment.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        print("rank 0 waits")
        torch.distributed.barrier()

    moment = tmp_path / "moment"
    with pytest.raises(RankError) as caught:
        launch(job, 2, {"moment": moment}, on=DeepSpeedCommand())
    assert time.monotonic() - float(moment.read_text()) < PROMPT + SLACK
    assert str(caught.value).splitlines()[0] == "rank 1 of 2 was killed by SIGKILL"
    assert caught.value.rank == 1 and caught.value.outputs[0].endswith("rank 0 waits\n")
    assert private_folders() == []


def test_a_hang_ends_with_every_stack():
    def hang_in_rank_1():
        import torch.distributed

        all_reduced(1.0)
        if os.environ["RANK"] == "1":
            time.sleep(60)
        torch.distributed.barrier()

    timeout = crowded(15, most=4)  # seconds: the start of the ranks, twice over, and a hang
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(hang_in_rank_1, 2, on=DeepSpeedCommand(), timeout=timeout)
    took, lines = time.monotonic() - started, str(caught.value).splitlines()
    assert (
        lines[0]
        == f"rank 1 of 2 hung: still running after {timeout} s, in no collective, while rank 0 waited for it"
    )
    assert timeout <= took < timeout + PROMPT + SLACK
    for rank in (0, 1):
        assert "in hang_in_rank_1" in lines[lines.index(f"  rank {rank}:") + 1]


def test_nobody_else_gets_the_port_before_rank_0_listens_there(monkeypatch):
    asked = []

    def start(arguments, **_):
        command = json.loads(arguments[-1])["command"]
        for address in ("127.0.0.1", ""):
            with socket.socket() as other, pytest.raises(OSError) as caught:
                other.bind((address, int(command[command.index("--master_port") + 1])))
            asked.append(caught.value.errno)
        raise OSError("far enough")

    monkeypatch.setattr("subprocess.Popen", start)
    with pytest.raises(LaunchError, match="far enough"):
        launch(lambda: None, 2, on=DeepSpeedCommand())
    assert asked == 2 * [errno.EADDRINUSE]


def test_a_command_that_does_not_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LaunchError, match="^the deepspeed command ended with status 1:"):
        launch(lambda: None, 2, on=DeepSpeedCommand())


def test_interrupts_and_the_end_of_the_kernel(kernels):
    (kernel,) = kernels()
    for moment in (0.5, 2.5, None):  # while the command starts, and while its ranks are at work
        kernel.occupy("sleep", on="DeepSpeedCommand()")
        if moment:
            time.sleep(moment)
        else:
            assert kernel.ready()
            assert (
                len(kernel.processes()) >= 7
            )  # kernel, runner, launcher, two ranks, and what they have started
        kernel.interrupt()
        assert kernel.answer(PROMPT + SLACK) == [None, ["KeyboardInterrupt", ""]]
        assert eventually(lambda: kernel.processes() == [kernel.process_itself()])
        assert private_folders() == []
    before = running([psutil.Process(process.pid) for process in ours() if process not in kernel.processes()])
    kernel.occupy("gil", on="DeepSpeedCommand()")
    assert kernel.ready()
    os.kill(kernel.process.pid, signal.SIGKILL)
    assert eventually(lambda: ours() == before), ours()
    assert private_folders() == []
