"""A real Slurm on machines made of namespaces, and `launch` through its `srun`.

Skipped, with the reason, where Slurm's programs are not installed or machines are not allowed.
"""

import os
import shutil
import signal
import sys

import cloudpickle
import pytest
from helpers import Machines, Slurm
from helpers.launcher.failures import LaunchError
from helpers.machines import machines, slurm
from tests.launcher.support import eventually, ours, running

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def allowed():
    if reason := slurm.problem() or machines.problem():
        pytest.skip(reason)


@pytest.fixture
def cluster(nothing_is_left):
    """A Slurm of two nodes."""
    with Machines(2) as pair, Slurm(pair) as cluster:
        yield cluster


def test_slurm_is_up_runs_on_every_machine_and_leaves_nothing(tmp_path):
    """What the fixture compares afterwards: processes, descriptors, files."""
    path = os.environ["PATH"]
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=2\n#SBATCH --output=%j.txt\nsrun sh -c 'setsid sleep 60 & hostname'\n")
    with Machines(2) as pair, Slurm(pair) as cluster:
        assert cluster.run("sinfo", "--noheader", "--format=%P %D %T %N") == "all* 2 idle machine[0-1]\n"
        assert sorted(cluster.run("srun", "--nodes=2", "--ntasks-per-node=2", "hostname").split()) == ["machine0"] * 2 + ["machine1"] * 2
        assert cluster.run("sbatch", f"--chdir={tmp_path}", str(script)) == "Submitted batch job 2\n"
        written = tmp_path / "2.txt"
        assert eventually(lambda: written.exists() and len(written.read_text().split()) == 4), cluster.run("scontrol", "show", "job")
        assert "invalid partition" in cluster.run("srun", "--partition=none", "hostname")
    assert os.environ["PATH"] == path and "SLURM_CONF" not in os.environ and shutil.which("srun") != str(tmp_path)
    with pytest.raises(ValueError, match="^this Slurm is not up"):
        cluster.run("sinfo")


def test_a_killed_kernel_leaves_no_slurm_and_no_job(kernels):
    (kernel,) = kernels()
    before = [process for process in ours() if process not in kernel.processes()]
    cell = "import subprocess\nfrom helpers import Machines, Slurm\nmachines = Machines(2).__enter__()\nslurm = Slurm(machines).__enter__()\n"
    kernel.run(f"{cell}value = str(slurm.folder)\nprogram = subprocess.Popen(['srun', '-N2', 'sh', '-c', 'setsid sleep 61 & sleep 60'])")
    assert eventually(lambda: sum(process.name() == "sleep" for process in ours()) == 4)
    processes = kernel.processes()
    os.kill(kernel.process.pid, signal.SIGKILL)
    assert eventually(lambda: sorted(ours(), key=str) == sorted(before, key=str)), ours()
    assert eventually(lambda: not running(processes)), running(processes)


def test_without_its_programs_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(slurm, "found", lambda program: None if program == "slurmd" else f"/usr/bin/{program}")
    with Machines(1) as single, pytest.raises(LaunchError) as caught:
        Slurm(single).__enter__()
    assert str(caught.value).startswith("Slurm's slurmd is not installed here: ") and "\n" not in str(caught.value)


def test_a_slurm_that_does_not_come_up_shows_its_own_error_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr(slurm, "CONFIGURATION", slurm.CONFIGURATION + "Nonsense=1\n")
    monkeypatch.setattr(slurm, "PATIENCE", 0.5)
    with Machines(1) as single, pytest.raises(LaunchError, match="(?s)^Slurm did not come up .*Nonsense"):
        Slurm(single).__enter__()
