"""What a hang under NCCL says: a rank stands at the next line that needs a number, and the flight recorder
knows where the collective was begun."""

import subprocess
import sys
import sysconfig

import pytest
from helpers import expected_error, launch
from helpers.paths import ROOT
from helpers.tools.launcher import waits
from helpers.tools.launcher.failures import hang
from helpers.tools.launcher.outcome import Outcome
from helpers.tools.launcher.resources import gpu_count

LIBRARY = f"{sysconfig.get_path('purelib')}/torch/distributed/distributed_c10d.py"
FRAMES = [  # as torch's flight recorder has them: the innermost first
    {"filename": LIBRARY, "line": 3068, "name": "all_reduce"},
    {"filename": "/tmp/ipykernel_1/2.py", "line": 60, "name": "train_step"},
    {"filename": "/tmp/ipykernel_1/2.py", "line": 66, "name": "train"},
]
STACK = 'Stack (most recent call first):\n  File "/tmp/ipykernel_1/2.py", line 62 in train_step\n'


def entry(state, frames=FRAMES):
    return {
        "state": state,
        "retired": state == "completed",
        "frames": frames,
        "profiling_name": "nccl:all_reduce",
    }


def answered(monkeypatch, entries):
    monkeypatch.setattr(waits, "recorded", lambda dump: entries if dump == "_dump_nccl_trace" else [])
    outcome = Outcome(0, at_work=True)
    outcome.stacks += STACK.encode()
    if said := waits.on_gpu():
        outcome.stacks += f"\n{waits.ANSWER}{said}\n".encode()
    return outcome


def test_the_first_collective_that_has_not_ended_is_named_with_its_line(monkeypatch):
    """Later ones wait behind it."""
    later = entry("scheduled", FRAMES[:1])
    waiting = answered(monkeypatch, [entry("completed"), entry("scheduled"), later])
    left = Outcome(1, at_work=True, report={"value": 0})
    assert str(hang([waiting, left], 20)).splitlines() == [
        "rank 0 of 2 hung in all_reduce, which rank 1 never entered (stopped after 20 s)",
        "  rank 0:",
        "    cell, line 66, in train",
        "    cell, line 60, in train_step",
        "    torch/distributed/distributed_c10d.py, line 3068, in all_reduce",
        "    and has gone on to cell, line 62, in train_step",
        "  rank 1: had returned",
    ]


def test_a_rank_whose_collectives_have_ended_is_elsewhere(monkeypatch):
    at_work, waiting = (answered(monkeypatch, [entry(state)]) for state in ("completed", "started"))
    at_work.rank = 1
    said = str(hang([waiting, at_work], 20))
    assert said.startswith(
        "rank 1 of 2 hung: still running after 20 s, in no collective, while rank 0 waited"
    )


def leave_one_out():
    import deepspeed
    import deepspeed.comm as comm
    import torch

    deepspeed.init_distributed()
    x = torch.ones(2**20, device="cuda")
    comm.all_reduce(x)
    if comm.get_rank() == 0:
        comm.all_reduce(x)
    return x[0].item()


@pytest.mark.skipif(gpu_count() < 2, reason="fewer than two GPUs on this machine")
def test_a_real_one(capsys):
    with expected_error():
        launch(leave_one_out, ranks=2, timeout=15)
    said = capsys.readouterr().out
    assert "rank 0 of 2 hung in all_reduce, which rank 1 never entered (stopped after 15 s)" in said
    assert "comm.all_reduce(x)" in said and "and has gone on to" in said


ASKED = """
import os, threading, time
from helpers.tools.launcher import waits
waits.reserve_signal()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # as CUDA's, before the one that answers
waits._waited_for.append("all_reduce")
waits.answer_when_asked(1)
os.kill(os.getpid(), waits.ASK)
time.sleep(1)
os._exit(0)
"""


@pytest.mark.skipif(waits.ASK is None, reason="no real-time signals here")
def test_asking_a_rank_where_it_stands_does_not_end_it():
    """CUDA's threads begin before the launcher's own: one of them took the signal, which ended the rank."""
    done = subprocess.run([sys.executable, "-c", ASKED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"\n{waits.ANSWER}all_reduce\n")
