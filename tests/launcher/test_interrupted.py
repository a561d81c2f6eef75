"""What a learner reads after an interrupt: a line for the launch, and where each rank stood."""

import os
import signal
import sys
import threading
import time

import cloudpickle
import psutil
import pytest
from helpers import launch
from helpers.tools.launcher.outcome import Outcome, explain
from tests.launcher.support import PROMPT, SLACK, Notebook, eventually, settled

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CELL = """import deepspeed, os, pathlib, time
from helpers import launch

def job(folder):
    rank = os.environ["RANK"]
    deepspeed.init_distributed()
    pathlib.Path(folder, rank).touch()
    if rank == "3":
        return
    if rank == "0":
        time.sleep(60)
    deepspeed.comm.barrier()

launch(job, 4, {"folder": FOLDER})
"""


def test_a_notebook_shows_where_each_rank_stood(tmp_path):
    pytest.importorskip("ipykernel")
    with Notebook() as notebook:

        def interrupt():
            assert eventually(lambda: len(list(tmp_path.iterdir())) == 4, 60)
            assert eventually(lambda: settled(notebook.processes()))
            os.killpg(notebook.manager.provisioner.pid, signal.SIGINT)

        learner = threading.Thread(target=interrupt)
        learner.start()
        reply, messages = notebook.run(CELL.replace("FOLDER", repr(str(tmp_path))))
        learner.join()
    assert (reply["ename"], reply["evalue"]) == ("KeyboardInterrupt", "")
    (error,) = (message["content"] for message in messages if message["msg_type"] == "error")
    first, *rest = error["traceback"]
    assert first.startswith("interrupted after ") and first.endswith(" s")
    assert rest == [
        "  rank 0 in job, cell line 11",
        "  ranks 1, 2 in barrier, cell line 12",
        "  rank 3 had returned",
    ]


@pytest.mark.smoke
def test_a_rank_that_holds_the_interpreter_says_where_it_stands_too(tmp_path):
    import ctypes

    def job():
        (tmp_path / "at work").touch()
        ctypes.PyDLL(None).sleep(60)

    def interrupt():
        assert eventually((tmp_path / "at work").exists, 60)
        assert eventually(lambda: settled(psutil.Process().children(recursive=True)))
        moments.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    moments = []
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        launch(job, 1)
    assert time.monotonic() - moments[0] < PROMPT + SLACK
    assert caught.value._render_traceback_()[1:] == [
        "  rank 0 in job, tests/launcher/test_interrupted.py line 65"
    ]
    assert caught.value.__notes__ == ["\n".join(caught.value._render_traceback_())]


def test_an_interrupt_before_any_rank():
    interrupt = KeyboardInterrupt()
    explain(interrupt, [], 4.6)
    assert (
        interrupt._render_traceback_()
        == ["interrupted after 5 s, before any rank was started"]
        == interrupt.__notes__
    )


def test_a_rank_that_had_not_begun():
    interrupt = KeyboardInterrupt()
    explain(interrupt, [Outcome(0), Outcome(1, at_work=True), Outcome(2)], 1)
    assert interrupt._render_traceback_() == [
        "interrupted after 1 s",
        "  ranks 0, 2 had not begun",
        "  rank 1 gave no Python stack",
    ]


def test_ranks_on_machines_are_named_with_them():
    interrupt = KeyboardInterrupt()
    explain(interrupt, [Outcome(0, machine=0), Outcome(1, machine=1, at_work=True), Outcome(2, machine=1)], 1)
    said = ["  ranks 0, 2 on machines 0, 1 had not begun", "  rank 1 on machine 1 gave no Python stack"]
    assert interrupt._render_traceback_() == ["interrupted after 1 s", *said]


def test_a_rank_that_still_imports_has_not_begun():
    """Under the deepspeed command and Slurm, where that takes seconds: its stack is the libraries' own."""
    outcome = Outcome(
        0,
        stacks=bytearray(b'  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed\n'),
    )
    explain(interrupt := KeyboardInterrupt(), [outcome], 1.0)
    assert interrupt._render_traceback_()[1:] == ["  rank 0 had not begun"]
