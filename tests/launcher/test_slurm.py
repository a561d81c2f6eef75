"""A real Slurm on machines made of namespaces, and `launch` through its `srun`.

Skipped, with the reason, where Slurm's programs are not installed or machines are not allowed.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import numpy as np
import psutil
import pytest
from helpers import Machines, Slurm, SlurmNodes, Ssh, export, launch
from helpers.tools.launcher.failures import LaunchError, Outcome, RankError, hang
from helpers.tools.machines import daemons, namespaces, slurm
from tests.launcher.support import (
    all_reduced,
    eventually,
    ours,
    running,
    settled,
    start_in_a_session_of_its_own,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def allowed():
    if reason := slurm.problem() or namespaces.problem():
        pytest.skip(reason)


@pytest.fixture
def slurm_of_two(nothing_is_left):
    with Machines(2) as pair, Slurm(pair) as cluster:
        yield cluster


# --- Slurm itself


def test_slurm_is_up_runs_on_every_machine_and_leaves_nothing(tmp_path):
    """What the fixture compares afterwards: processes, descriptors, files."""
    path = os.environ["PATH"]
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=2\n#SBATCH --output=%j.txt\nsrun sh -c "
        "'setsid sleep 60 & hostname'\n"
    )
    with Machines(2) as pair, Slurm(pair) as cluster:
        assert cluster.run("sinfo", "--noheader", "--format=%P %D %T %N") == "all* 2 idle machine[0-1]\n"
        assert (
            sorted(cluster.run("srun", "--nodes=2", "--ntasks-per-node=2", "hostname").split())
            == ["machine0"] * 2 + ["machine1"] * 2
        )
        assert cluster.run("sbatch", f"--chdir={tmp_path}", str(script)) == "Submitted batch job 2\n"
        written = tmp_path / "2.txt"
        assert eventually(lambda: written.exists() and len(written.read_text().split()) == 4), cluster.run(
            "scontrol", "show", "job"
        )
        assert "invalid partition" in cluster.run("srun", "--partition=none", "hostname")
    assert os.environ["PATH"] == path and "SLURM_CONF" not in os.environ
    with pytest.raises(ValueError, match="^this Slurm is not up"):
        cluster.run("sinfo")


def test_a_killed_kernel_leaves_no_slurm_and_no_job(kernels):
    (kernel,) = kernels()
    before = [process for process in ours() if process not in kernel.processes()]
    cell = (
        "import subprocess\nfrom helpers import Machines, Slurm\nmachines = "
        "Machines(2).__enter__()\nslurm = Slurm(machines).__enter__()\n"
    )
    kernel.run(
        f"{cell}value = str(slurm.folder)\nprogram = subprocess.Popen(['srun', '-N2', 'sh', '-c', "
        "'setsid sleep 61 & sleep 60'])"
    )
    assert eventually(lambda: sum(process.name() == "sleep" for process in ours()) == 4)
    processes = kernel.processes()
    os.kill(kernel.process.pid, signal.SIGKILL)
    assert eventually(lambda: sorted(ours(), key=str) == sorted(before, key=str)), ours()
    assert eventually(lambda: not running(processes)), running(processes)


def test_without_its_programs_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(
        daemons, "path_of", lambda program: None if program == "slurmd" else f"/usr/bin/{program}"
    )
    with Machines(1) as single, pytest.raises(LaunchError) as caught:
        Slurm(single).__enter__()
    assert str(caught.value).startswith("Slurm's slurmd is not installed here: ") and "\n" not in str(
        caught.value
    )


def test_a_slurm_that_does_not_come_up_shows_its_own_error_at_once_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr(slurm, "CONFIGURATION", slurm.CONFIGURATION + "Nonsense=1\n")
    started = time.monotonic()
    with Machines(1) as single, pytest.raises(LaunchError, match="(?s)^Slurm did not come up:.*Nonsense"):
        Slurm(single).__enter__()
    assert time.monotonic() - started < slurm.Slurm.patience / 2


def test_machines_run_one_slurm_and_one_ssh(slurm_of_two):
    machines, started = slurm_of_two.machines, time.monotonic()
    with pytest.raises(ValueError, match="^these machines run a Slurm already: use it, or close it first$"):
        Slurm(machines).__enter__()
    with pytest.raises(ValueError, match="^this Slurm is up already"):
        slurm_of_two.__enter__()
    with Ssh(machines), pytest.raises(ValueError, match="^these machines run an Ssh already: use it"):
        Ssh(machines).__enter__()
    assert time.monotonic() - started < 15
    assert slurm_of_two.run("hostname") == f"{os.uname().nodename}\n"
    slurm_of_two.close()
    with Slurm(machines) as another:
        assert another.run("sinfo", "--noheader", "--format=%D %T") == "2 idle\n"
    with pytest.raises(TypeError, match="machines must be `Machines`, not 2"):
        Slurm(2)


def environment():
    return {name: os.environ.get(name) for name in ("PATH", "SLURM_CONF")}


def folders_of_path():
    return [
        folder for folder in os.environ["PATH"].split(os.pathsep) if "slurm-" in folder or "ssh-" in folder
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(("machines", "slurm", "ssh"))), ids=" ".join)
def test_any_order_of_closing_is_safe(nothing_is_left, order, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/of/the/learner")
    before, folders = environment(), folders_of_path()
    machines = Machines(2).__enter__()
    cluster = Slurm(machines).__enter__()
    opened = {"machines": machines, "slurm": cluster, "ssh": Ssh(machines).__enter__()}
    for name in order:
        opened[name].close()
        opened[name].close()
        assert all(os.path.isdir(folder) for folder in folders_of_path())
        assert os.environ["SLURM_CONF"] == "/of/the/learner"
    assert environment() == before and folders_of_path() == folders


def test_of_two_clusters_the_one_that_is_left_is_meant(nothing_is_left):
    before = environment()
    with Machines(1) as first, Machines(2) as second:
        outer, inner = Slurm(first).__enter__(), Slurm(second).__enter__()
        assert inner.run("sinfo", "--noheader", "--format=%D") == "2\n"
        os.environ["PATH"] += os.pathsep + "/of/the/learner"
        outer.close()
        assert inner.run("sinfo", "--noheader", "--format=%D") == "2\n"
        inner.close()
        assert environment() == before | {"PATH": before["PATH"] + os.pathsep + "/of/the/learner"}
        os.environ["PATH"] = before["PATH"]


def test_a_forked_child_that_leaves_the_block_ends_no_cluster(slurm_of_two):
    child = os.fork()
    if child == 0:
        slurm_of_two.close()
        slurm_of_two.machines.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert slurm_of_two.run("sinfo", "--noheader", "--format=%D %T") == "2 idle\n"


def test_wrong_numbers_of_a_cluster_are_refused():
    machines = Machines(2)
    assert Slurm(machines, gpus=np.int64(2)).gpus == 2
    for wrong in (True, False, 1.0, "1", None):
        with pytest.raises(TypeError, match="gpus of each node must be from 0 to 4, .* no whole number"):
            Slurm(machines, gpus=wrong)
        with pytest.raises(TypeError, match="slots of each machine must be from 1 to .*no whole number"):
            Ssh(machines, slots=wrong)
    for wrong in (-1, 5):
        with pytest.raises(ValueError, match="gpus of each node must be from 0 to 4, not "):
            Slurm(machines, gpus=wrong)
    with pytest.raises(ValueError, match="slots of each machine must be from 1 to .*, not 0"):
        Ssh(machines, slots=0)


def sleeps_on_the_first():
    if os.environ["RANK"] == "0":
        time.sleep(60)


def test_with_a_machine_unplugged_a_rank_that_never_began_is_told_with_its_cable(slurm_of_two, tmp_path):
    slurm_of_two.machines.unplug(1)
    with pytest.raises(LaunchError) as caught:
        launch(sleeps_on_the_first, 2, on=SlurmNodes(2, folder=tmp_path), timeout=25)
    lines = str(caught.value).splitlines()
    assert "  machine 1 is unplugged" in lines and "in no collective" not in lines[0], lines
    assert "srun command ended" in lines[0] or lines[0].startswith("rank 1 of 2 never began"), lines
    assert left_in(tmp_path) == []
    slurm_of_two.machines.plug(1)


def test_a_rank_that_never_began_is_not_one_that_hangs():
    outcomes = [Outcome(0, at_work=True), Outcome(1)]
    outcomes[0].stacks += b'  File "cell", line 3 in job\n'
    said = str(hang(outcomes, 20, ["  machine 1 is unplugged"])).splitlines()
    assert said[0] == "rank 1 of 2 never began its function (stopped after 20 s)"
    assert said[1] == "  machine 1 is unplugged" and said[-1] == "    not yet at work"


def trained():
    import deepspeed
    import torch

    deepspeed.init_distributed()
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    return f"{total.item()} on {os.uname().nodename}"


def test_the_sbatch_file_of_an_exported_function_runs(slurm_of_two, tmp_path, monkeypatch):
    folder = tmp_path / "exported"
    export(trained, folder, hosts=["machine0", "machine1"], slots=1, interface="eth0", gpus=False)
    monkeypatch.setenv(
        "PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    )  # as in an activated environment
    assert (
        slurm_of_two.run("sbatch", f"--chdir={folder}", str(folder / "job.sbatch"))
        == "Submitted batch job 1\n"
    )
    written = folder / "job-1.txt"
    assert eventually(lambda: written.exists() and "2.0 on machine0\n" in written.read_text(), 120), (
        written.read_text()
    )


def wrote(place, job, gpus=False):
    """Export something, and let a small script stand for it, which does not import torch; the log of its
    job."""
    export(
        wrote, place, {"place": "", "job": ""}, hosts=["machine0", "machine1"], slots=1, gpus=gpus, restarts=1
    )
    first = (
        'import os; start = os.environ.get("SLURM_RESTART_COUNT", "0"); print("start", start, "of", '
        'os.environ["WORLD_SIZE"], flush=True)\n'
    )
    (place / "wrote.py").write_text(first + job)
    return place / "job-1.txt"


def of_starts(log):
    return (
        sorted(line for line in log.read_text().splitlines() if line.startswith("start "))
        if log.exists()
        else []
    )


def at_once(cluster):
    """Start the job that waits to be started again, in another second: a node refuses what was granted in
    that of the first run's end."""
    assert eventually(
        lambda: cluster.run("squeue", "--noheader", "--format=%T %r") == "PENDING BeginTime\n", 60
    )
    time.sleep(1)  # not "now+1": what begins later waits for Slurm's next round, up to a minute
    cluster.run("scontrol", "update", "jobid=1", "starttime=now")


def test_the_exported_job_outlives_a_node_and_goes_on_in_one_log(slurm_of_two, tmp_path):
    log = wrote(tmp_path / "out", 'import time\nif start == "0": time.sleep(60)\n')
    slurm_of_two.run("sbatch", f"--chdir={log.parent}", str(log.parent / "job.sbatch"))
    assert eventually(lambda: of_starts(log) == ["start 0 of 2"] * 2, 60)
    slurm_of_two.machines.unplug(1)
    slurm_of_two.run("scontrol", "update", "nodename=machine1", "state=down", "reason=unplugged")
    at_once(slurm_of_two)  # it wants two nodes again, and so waits
    assert eventually(lambda: "DOWN" in slurm_of_two.run("squeue", "--noheader", "--format=%r"), 30)
    slurm_of_two.run("scontrol", "update", "jobid=1", "numnodes=1", "numtasks=1", "starttime=now")
    assert eventually(lambda: of_starts(log) == ["start 0 of 2"] * 2 + ["start 1 of 1"], 60), log.read_text()
    assert eventually(lambda: jobs_of(slurm_of_two) == [])


def test_the_exported_job_starts_again_when_a_rank_fails_as_often_as_it_may(slurm_of_two, tmp_path):
    log = wrote(tmp_path / "out", 'raise SystemExit(os.environ["RANK"] == "1")\n')
    slurm_of_two.run("sbatch", f"--chdir={log.parent}", str(log.parent / "job.sbatch"))
    at_once(slurm_of_two)
    assert eventually(lambda: jobs_of(slurm_of_two) == [], 60)
    assert set(of_starts(log)) == {
        "start 0 of 2",
        "start 1 of 2",
    }  # of rank 1 at least: rank 0 may end before it writes


def test_gpus_are_counted_and_given_out_where_there_are_none(nothing_is_left, tmp_path):
    ask = ["sh", "-c", "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES"]
    with Machines(2) as pair, Slurm(pair, gpus=2) as cluster:
        assert cluster.run("sinfo", "--noheader", "--format=%G") == "gpu:2\n"
        each = "--quiet", "--nodes=2", "--ntasks-per-node=2"  # no word of waiting for the job before
        assert sorted(cluster.run("srun", *each, "--gpus-per-node=2", *ask).splitlines()) == [
            f"{rank} 0,1" for rank in range(4)
        ]
        assert sorted(cluster.run("srun", *each, "--gpus-per-task=1", *ask).splitlines()) == [
            f"{rank} {rank % 2}" for rank in range(4)
        ]
        assert "node configuration is not available" in cluster.run("srun", *each, "--gpus-per-node=3", *ask)
        log = wrote(
            tmp_path / "out",
            'print("start", os.environ["RANK"], os.environ["CUDA_VISIBLE_DEVICES"])',
            gpus=True,
        )
        batch = log.parent / "job.sbatch"
        number = cluster.run("sbatch", "--parsable", f"--chdir={log.parent}", str(batch)).strip()
        assert eventually(
            lambda: (
                of_starts(log.with_name(f"job-{number}.txt"))
                == ["start 0 0", "start 0 of 2", "start 0 of 2", "start 1 0"]
            ),
            60,
        )


# --- launch through it


def jobs_of(cluster):
    """Slurm's jobs that have not ended."""
    return cluster.run("squeue", "--noheader", "--format=%T %D").split("\n")[:-1]


def left_in(folder):
    return [name for name in os.listdir(folder) if name.startswith(".launch-")]


VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "CROSS_RANK",
    "CROSS_SIZE",
    "MASTER_ADDR",
    "GLOO_SOCKET_IFNAME",
)


def test_the_same_function_gives_the_same_under_srun(slurm_of_two, tmp_path, capsys):
    import torch

    carried = torch.ones(400_000)  # 1.6 MB, which lie beside the pickle

    def job(factor):
        total = all_reduced(float(os.environ["RANK"]))
        print("rank", os.environ["RANK"], "writes on", os.uname().nodename)
        started = start_in_a_session_of_its_own()
        return (
            total,
            {name: os.environ[name] for name in VARIABLES},
            carried * factor * int(os.environ["RANK"]),
            started,
        )

    reports = launch(
        job,
        4,
        {"factor": 2},
        on=SlurmNodes(2, time=5, partition="all", folder=tmp_path, show=True),
    )
    assert reports.outputs == [f"rank {rank} writes on machine{rank // 2}\n" for rank in range(4)]
    printed = capsys.readouterr().out
    assert printed.endswith("rank 0 writes on machine0\n") and "rank 1 writes" not in printed
    assert printed.startswith(
        "$ srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --partition=all --time=5 --job-name=launch-"
    )
    for rank, (total, variables, tensor, started) in enumerate(reports):
        expected = (rank, rank % 2, 4, 2, rank // 2, 2, "machine0", "eth0")
        assert total == 6.0 and variables == dict(zip(VARIABLES, map(str, expected)))
        assert tensor.shape == (400_000,) and set(tensor.tolist()) == {2.0 * rank}
        left = [psutil.Process(process) for process in started if psutil.pid_exists(process)]
        assert eventually(lambda left=left: not running(left))
    assert jobs_of(slurm_of_two) == [] and left_in(tmp_path) == []


def test_a_failure_names_the_rank_and_its_node_and_the_job_is_cancelled(slurm_of_two, tmp_path):
    def job():
        import torch.distributed

        all_reduced(1.0)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        print("rank 0 waits")
        torch.distributed.barrier()
        time.sleep(60)

    with pytest.raises(RankError) as caught:
        launch(job, 2, on=SlurmNodes(2, folder=tmp_path))
    assert str(caught.value).splitlines()[0] == "rank 1 of 2 on node machine1 was killed by SIGKILL"
    assert caught.value.rank == 1 and caught.value.outputs[0] == "rank 0 waits\n"
    assert jobs_of(slurm_of_two) == [] and left_in(tmp_path) == []


OCCUPIED = """
import os, subprocess, time
from pathlib import Path
from helpers import SlurmNodes, launch

def occupied(folder):
    rank = os.environ["RANK"]
    subprocess.Popen(["sleep", "60"], start_new_session=rank == "0")
    Path(folder, "ready-" + rank).touch()
    time.sleep(60)

try:
    launch(occupied, 2, {"folder": FOLDER}, on=SlurmNodes(2, folder=FOLDER))
except BaseException as problem:
    value = [type(problem).__name__, *getattr(problem, "__notes__", [])]
"""


def occupy(kernel):
    kernel.start(OCCUPIED.replace("FOLDER", repr(str(kernel.folder))))


def test_an_interrupt_and_the_death_of_the_kernel_cancel_the_job(slurm_of_two, kernels):
    """The cluster is not the kernel's, and goes on."""
    (kernel,) = kernels()
    others = [process for process in ours() if process not in kernel.processes()]
    hold = subprocess.Popen(["srun", "--nodes=2", "--exclusive", "sleep", "60"], stderr=subprocess.DEVNULL)
    assert eventually(lambda: jobs_of(slurm_of_two) == ["RUNNING 2"])
    occupy(kernel)
    assert eventually(
        lambda: sorted(jobs_of(slurm_of_two)) == ["PENDING 2", "RUNNING 2"]
    )  # it waits in the queue
    kernel.interrupt()
    (kind, note), _ = kernel.answer()
    assert kind == "KeyboardInterrupt" and note.endswith(", before any rank was started")
    assert jobs_of(slurm_of_two) == ["RUNNING 2"] and left_in(kernel.folder) == []
    slurm_of_two.run("scancel", "--user", str(os.getuid()))
    assert hold.wait(60) != 0
    occupy(kernel)
    assert kernel.ready() and eventually(lambda: settled(ours()))
    kernel.interrupt()
    (kind, note), _ = kernel.answer()
    assert (
        kind == "KeyboardInterrupt"
        and "  ranks 0, 1 on nodes machine0, machine1 in occupied, cell line 10" in note.splitlines()
    )
    assert jobs_of(slurm_of_two) == [] and left_in(kernel.folder) == []
    occupy(kernel)
    assert eventually(lambda: jobs_of(slurm_of_two) == ["RUNNING 2"])
    os.kill(kernel.process.pid, signal.SIGKILL)
    assert eventually(lambda: jobs_of(slurm_of_two) == [] and left_in(kernel.folder) == [])
    assert eventually(lambda: sorted(ours(), key=str) == sorted(others, key=str)), ours()


def test_what_ends_a_job_from_outside_is_told_in_the_words_of_slurm(slurm_of_two, tmp_path):
    with pytest.raises(
        LaunchError, match=r"(?s)^the srun command ended with status 1:\n.*[Ii]nvalid partition.* none"
    ):
        launch(lambda: None, 2, on=SlurmNodes(partition="none", folder=tmp_path))
    with pytest.raises(
        LaunchError,
        match=r"(?s)^the srun command ended with status 1:\n.*[Nn]ode count|[Nn]ode configuration",
    ):
        launch(lambda: None, 3, on=SlurmNodes(3, folder=tmp_path))
    for begun in (
        lambda: jobs_of(slurm_of_two),
        lambda: (tmp_path / "begun").exists(),
    ):  # ranks that start, ranks that work
        cancel = threading.Thread(
            target=lambda begun=begun: eventually(begun) and slurm_of_two.run("scancel", "--partition=all")
        )
        cancel.start()
        with pytest.raises(
            LaunchError, match=r"(?s)^the srun command ended with status \d+ \(Slurm: CANCELLED\):\n"
        ) as caught:
            launch(
                lambda: (tmp_path / "begun").touch() or time.sleep(60),
                2,
                on=SlurmNodes(2, folder=tmp_path),
            )
        cancel.join()
        assert "CANCELLED AT" not in str(caught.value) and left_in(tmp_path) == []


def test_a_folder_that_a_node_does_not_see_is_named(slurm_of_two, tmp_path):
    cover = (
        "import ctypes, os, sys; os.mkdir(sys.argv[1]); sys.exit(ctypes.CDLL(None).mount(b'tmpfs', "
        "sys.argv[1].encode(), b'tmpfs', 0, None))"
    )
    if os.getuid():
        pytest.skip("only root can mount what the machines see and this process does not")
    hidden = tmp_path / "hidden"
    assert slurm_of_two.machines.start(0, [sys.executable, "-c", cover, str(hidden)]).wait() == 0
    with pytest.raises(LaunchError) as caught:
        launch(lambda: None, 2, on=SlurmNodes(2, folder=hidden))
    place = str(caught.value).replace(left := str(caught.value).split("/.launch-")[1][:8], "", 1)
    assert left and place.startswith(f"the folder {hidden}/.launch- cannot be written on machine")
    assert place.endswith(
        " (No such file or directory): give `Hosts` or `SlurmNodes` a `folder=` that all machines share, at "
        "the same place"
    )
    assert jobs_of(slurm_of_two) == [] and left_in(hidden) == []
