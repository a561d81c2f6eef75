"""The forkserver of a notebook starts when `launch` is imported, by nothing else that is imported and nowhere
else, and ends by itself when nobody launches."""

import os
import signal
import subprocess
import sys
import threading

import cloudpickle
import psutil
import pytest
from helpers import launch
from helpers.tools.launcher import resources
from helpers.tools.launcher.forked import forkservers, warming
from tests.launcher.support import REPOSITORY, Notebook, eventually, running

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RANKS = "assert launch(lambda: __import__('os').environ['RANK'], 2) == ['0', '1']"


@pytest.fixture
def notebook():
    pytest.importorskip("ipykernel")
    with Notebook() as notebook:
        yield notebook


def test_the_import_in_a_notebook_starts_what_the_first_launch_uses(notebook):
    reply, messages = notebook.run("from helpers import launch")
    assert reply["status"] == "ok" and not [
        message for message in messages if message["msg_type"] in ("stream", "display_data")
    ]
    (forkserver,) = notebook.processes()
    assert eventually(lambda: "forkserver" in " ".join(forkserver.cmdline()))
    notebook.run("from helpers import launch")
    assert notebook.run(RANKS)[0]["status"] == "ok"
    assert notebook.processes() == [forkserver]


def test_no_other_import_in_a_notebook_starts_anything(notebook):
    for cell in (
        "import helpers; dir(helpers)",
        "from helpers import theory",
        "from helpers import LaunchError, Machines, SlurmNodes, corpus, models",
        "import helpers.tools.launcher.jobs",
    ):
        assert notebook.run(cell)[0]["status"] == "ok" and notebook.processes() == [], cell


def test_a_kernel_that_ends_at_once_leaves_nothing(notebook):
    notebook.run("from helpers import launch")
    processes = notebook.processes()
    assert processes
    os.kill(notebook.manager.provisioner.pid, signal.SIGKILL)
    assert eventually(lambda: not running(processes)), running(processes)


def test_one_that_dies_while_it_is_warmed_is_replaced(notebook):
    notebook.run("from helpers import launch")
    (forkserver,) = notebook.processes()
    forkserver.kill()
    assert notebook.run(RANKS)[0]["status"] == "ok"
    assert running([forkserver]) == [] and len(running(notebook.processes())) == 1


def test_one_that_dies_while_a_launch_waits_for_it_is_replaced():
    forkservers.forget("cpu")
    earlier = forkservers.begin_warming("cpu")
    killer = threading.Timer(0.3, earlier.process.kill)
    killer.start()
    assert launch(lambda: os.environ["RANK"], 2) == ["0", "1"]
    assert not killer.is_alive() and earlier.process.returncode == -signal.SIGKILL


def test_a_script_starts_nothing_before_it_launches():
    script = "import psutil; from helpers import launch; print(psutil.Process().children())"
    assert (
        subprocess.run(
            [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
        ).stdout
        == "[]\n"
    )


def test_a_rank_that_imports_launch_starts_nothing():
    def job():
        from helpers import launch

        return callable(launch), psutil.Process().children()

    assert launch(job, 2) == [(True, [])] * 2


@pytest.mark.parametrize(
    "visible, nodes, cuda, gpus",
    [
        (None, 8, True, 8),
        ("", 8, True, 0),
        ("-1", 8, True, 0),
        ("2,3", 8, True, 2),
        ("0,1,2", 1, True, 1),
        (None, 8, False, 0),
        (None, 0, True, 0),
    ],
)
def test_the_probable_number_of_gpus(monkeypatch, visible, nodes, cuda, gpus):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(resources, "torch_has_cuda", lambda: cuda)
    monkeypatch.setattr(
        warming.Path, "glob", lambda path, pattern: [f"/dev/nvidia{number}" for number in range(nodes)]
    )
    assert warming.probable_gpus() == gpus


def test_an_idle_forkserver_ends_and_the_next_launch_starts_another(monkeypatch):
    forkservers.forget("cpu")
    monkeypatch.setattr(forkservers, "IDLE", 1.0)
    assert launch(lambda: __import__("time").sleep(1.5) or 1, 1) == [1]  # a job that lasts is not idle
    (forkserver,) = psutil.Process().children()
    assert eventually(lambda: not running([forkserver]))
    monkeypatch.undo()
    assert launch(lambda: os.environ["RANK"], 2) == ["0", "1"]


def test_one_that_was_warmed_and_left_idle_is_replaced(monkeypatch):
    forkservers.forget("cpu")
    monkeypatch.setattr(forkservers, "IDLE", 0.2)
    server = forkservers.begin_warming("cpu")
    assert eventually(lambda: server.process.poll() is not None, 60)
    monkeypatch.undo()
    assert launch(lambda: os.environ["RANK"], 2) == ["0", "1"]
