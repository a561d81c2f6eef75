"""`launch` through the real `deepspeed` command on the machines of a hostfile: by ssh and pdsh, and by hand;
and what is refused.

The first needs an sshd, ssh and pdsh; they and machines are looked for, and what is missing is the reason why
a test is skipped.
"""

import errno
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import numpy as np
import psutil
import pytest
from helpers import Hosts, Machines, SlurmNodes, Ssh, launch
from helpers.tools.launcher.cluster import guard, hosts, orders, remote, srun
from helpers.tools.launcher.cluster.remote import Keeper, card_towards, nodes_of
from helpers.tools.launcher.cluster.shared_job import SharedJob
from helpers.tools.launcher.failures import LaunchError, Outcome, RankError
from helpers.tools.launcher.pipes import AT_WORK
from helpers.tools.machines import namespaces, ssh
from tests.launcher.support import all_reduced, eventually, ours

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def pair(nothing_is_left):
    if reason := namespaces.problem():
        pytest.skip(reason)
    with Machines(2) as up:
        yield up


@pytest.fixture
def reached(pair):
    if reason := ssh.problem():
        pytest.skip(reason)
    with Ssh(pair, slots=1) as servers:
        yield servers


def left_in(folder):
    return [name for name in os.listdir(folder) if name.startswith(".launch-")]


# --- Through ssh

VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "CROSS_RANK",
    "MASTER_ADDR",
    "GLOO_SOCKET_IFNAME",
    "OWN",
)


def test_the_same_function_gives_the_same_through_ssh(reached, tmp_path, monkeypatch):
    """A variable reaches the ranks through .deepspeed_env, and not otherwise."""

    def job():
        print("rank", os.environ["RANK"], "writes")
        return (
            all_reduced(1.0),
            os.uname().nodename,
            [os.environ.get(name) for name in VARIABLES],
            "NOT_PASSED_ON" in os.environ,
        )

    monkeypatch.setenv("NOT_PASSED_ON", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".deepspeed_env").write_text("OWN=of the learner\n")
    reports = launch(job, 2, on=Hosts(reached.hostfile))
    for rank, report in enumerate(reports):
        of_rank = [str(rank), "0", "1", str(rank), "machine0", "eth0", "of the learner"]
        assert report == (2.0, f"machine{rank}", of_rank, False)
    assert reports.outputs == ["rank 0 writes\n", "rank 1 writes\n"]
    assert reports.command[:2] == ["deepspeed", "--hostfile"] and left_in(tmp_path) == []


OCCUPIED = """
from helpers import Hosts, launch
launch(lambda: None, 2, on=Hosts(HOSTFILE, folder=FOLDER))
"""


def test_the_death_of_the_kernel_ends_what_ssh_has_started(reached, kernels):
    """While the ranks start; the servers are not the kernel's, and go on.  Nothing is killed by its name, as
    the deepspeed command does."""
    (kernel,) = kernels()
    others = [process for process in ours() if process not in kernel.processes()]
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", "deepspeed.launcher.launch"],
        stdin=subprocess.PIPE,
    ) as spared:
        kernel.start(
            OCCUPIED.replace("HOSTFILE", repr(str(reached.hostfile))).replace(
                "FOLDER", repr(str(kernel.folder))
            )
        )
        assert eventually(lambda: sum(is_launcher(process) for process in ours()) == 2, 60)
        os.kill(kernel.process.pid, signal.SIGKILL)
        assert eventually(
            lambda: {process.pid for process in ours()} == {process.pid for process in others} | {spared.pid},
            60,
        ), ours()
        assert left_in(kernel.folder) == [] and spared.poll() is None
        spared.communicate()


def is_launcher(process):
    """Whether a process is DeepSpeed's launcher on one of the machines."""
    try:
        return process.cmdline()[1:4] == ["-u", "-m", "deepspeed.launcher.launch"]
    except psutil.Error:  # it has just ended
        return False


def test_a_machine_that_cannot_be_reached_is_named_in_the_words_of_pdsh(reached, tmp_path):
    job = hosts.HostsJob(None, 2, "cpu", {"machine0": 1, "nowhere": 1}, folder=tmp_path)
    job.path = tmp_path
    with open(tmp_path / "log", "w+b") as job.log, subprocess.Popen(["sleep", "60"]) as job.guard:
        command = ["pdsh", "-R", "ssh", "-S", "-w", "machine0,nowhere", "true"]
        assert (
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=job.log, stderr=job.log, timeout=60
            ).returncode
            == 255
        )
        with pytest.raises(
            LaunchError,
            match=r"^the deepspeed command failed on nowhere: ssh exited with exit "
            r"code 255\n.*resolve hostname",
        ):
            job.check([Outcome(0), Outcome(1)])
        job.guard.kill()


# --- By hand


def test_commands_given_by_hand_do_the_same_and_a_failure_names_rank_and_machine(pair, tmp_path, monkeypatch):
    """A thread plays the learner, who copies each printed line to its machine."""

    def job():
        all_reduced(1.0)
        if os.environ["RANK"] == "1":
            raise ValueError("enough")
        all_reduced(1.0)

    def by_hand(*words, **_):
        if found := re.match(r"machine(\d)\$ (.*)", " ".join(map(str, words))):
            options = {
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.DEVNULL,
                "stderr": subprocess.DEVNULL,
            }
            started.append(pair.start(int(found[1]), ["sh", "-c", found[2]], **options))

    started, hostfile = [], tmp_path / "hostfile"
    hostfile.write_text("machine0 slots=1\nmachine1 slots=2\n")
    monkeypatch.setattr(hosts, "print", by_hand, raising=False)
    with pytest.raises(RankError) as caught:
        launch(job, 2, on=Hosts(hostfile, ssh=False, folder=tmp_path))
    assert str(caught.value).splitlines()[0] == "rank 1 of 2 on node machine1 raised ValueError: enough"
    assert (
        len(started) == 2 and [program.wait(60) for program in started] == [0, 0] and left_in(tmp_path) == []
    )


# --- What is refused


def refused(error, words, act):
    with pytest.raises(error, match=words):
        act()


def test_a_hostfile_is_read_as_deepspeed_reads_it(tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("# two\nnode0 slots=2\n\nnode1  slots=4 # the larger\n")
    assert hosts.read(hostfile) == {"node0": 2, "node1": 4}
    assert hosts.dealt({"node0": 2, "node1": 4}, 3) == {"node0": 2, "node1": 1}
    assert hosts.dealt({"node0": 2, "node1": 4}, 2) == {"node0": 2}


def test_a_hostfile_is_refused_when_hosts_are_made(tmp_path):
    hostfile = tmp_path / "hostfile"

    def made():
        return Hosts(hostfile)

    refused(ValueError, "^hostfile must be a file with a line such as `node0 slots=2` .* No such file", made)
    for text in ("node0\n", "node0 slots=2\nnode0 slots=2\n", "node0 slots=many\n"):
        hostfile.write_text(text)
        refused(
            ValueError, "every machine has one line such as `node0 slots=2`, which 'node0.*' is not", made
        )
    hostfile.write_text("node0 slots=2\n")
    for name, words in {"ssh": "True or False", "show": "True or False", "folder": "a path"}.items():
        refused(TypeError, f"^{name} must be {words}, not 5$", lambda name=name: Hosts(hostfile, **{name: 5}))
    refused(TypeError, "^hostfile must be a path, not 5$", lambda: Hosts(5))
    hosts_of_one = made()
    hostfile.write_text("node1 slots=1\n")
    assert hosts_of_one.slots == {"node0": 2} and hosts_of_one == made()
    with pytest.raises(AttributeError, match="ssh"):
        hosts_of_one.ssh = False


def test_what_cannot_go_to_other_machines_is_refused_before_anything_starts(tmp_path, monkeypatch):
    def launched(on, **options):
        return lambda: launch(lambda: None, **{"ranks": 2, "on": on, **options})

    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node0 slots=1\n")
    few = Hosts(hostfile, ssh=False)
    refused(ValueError, "^the hostfile has 1 slots, and there are 2 ranks$", launched(few))
    hostfile.write_text("node0 slots=2\n")
    nowhere = Hosts(hostfile, ssh=False, folder=tmp_path / "none")
    refused(LaunchError, "^folder must be one that all machines share .*: No such file", launched(nowhere))
    refused(ValueError, 'device must be "cpu", "cuda" or None', launched(few, device="tpu"))
    uneven = "^4 ranks cannot be dealt evenly to 3 nodes: use a multiple of 3$"
    refused(ValueError, uneven, launched(SlurmNodes(3), ranks=4))
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = "ssh and pdsh, and ssh and pdsh are not found here: `apt install"
    refused(LaunchError, missing, launched(Hosts(hostfile)))
    missing = "^`SlurmNodes` needs Slurm's commands, and srun, scancel, squeue are not found: "
    refused(LaunchError, missing, launched(SlurmNodes()))


def test_a_job_inside_of_a_job_is_one_of_its_own(monkeypatch, tmp_path):
    job = srun.SlurmJob(None, 4, "cpu", SlurmNodes(2, gpus=2, account="me", folder=tmp_path))
    monkeypatch.setenv("SLURM_NTASKS", "7")
    assert job.variables()["SLURM_NTASKS"] == "7"  # a default of the learner's own
    for name in ("SLURM_JOB_ID", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    assert [name for name in job.variables() if name.startswith("SLURM_")] == ["SLURM_CONF"]
    job.path = tmp_path / ".launch-1"
    assert job.words()[1:6] == [
        "--nodes=2",
        "--ntasks=4",
        "--ntasks-per-node=2",
        "--account=me",
        "--gpus-per-node=2",
    ]


def test_nodes_and_the_card_towards_them():
    assert nodes_of("a,b") == ["a", "b"]
    assert card_towards("127.0.0.1") == "lo"
    assert card_towards("no.such.machine.invalid") is None


SECRET = "hf_Zq7 'quoted' $HOME"


def test_values_of_the_learners_variables_are_never_shown(tmp_path, monkeypatch, capsys):
    """Neither in the commands for every machine nor in an error with DeepSpeed's log; the names are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".deepspeed_env").write_text(f"HF_TOKEN={SECRET}\n# a remark\nSHORT=1\n")
    (tmp_path / ".deepspeed_env").write_text("WANDB_KEY=s3cret=tail\n")
    job = hosts.HostsJob(None, 1, "cpu", {"machine0": 1}, ssh=False, folder=tmp_path)
    job.path = tmp_path
    job.command = job.words()
    assert job.launched() == []
    shown = capsys.readouterr().out
    assert "HF_TOKEN" in shown and "WANDB_KEY" in shown and "SHORT" in shown
    assert "hf_Zq7" not in shown and "s3cret" not in shown and "=1" not in shown
    ask = f'. {tmp_path / hosts.VARIABLES} && printf "%s %s" "$HF_TOKEN" "$WANDB_KEY"'
    said = subprocess.run(["sh", "-c", ask], capture_output=True, text=True, timeout=20)
    assert said.stdout == f"{SECRET} s3cret=tail"
    with open(tmp_path / "log", "w+b") as job.log, subprocess.Popen(["false"]) as job.guard:
        job.log.write(f"cmd = pdsh export HF_TOKEN={SECRET}; export WANDB_KEY=s3cret=tail; SHORT=1".encode())
        job.guard.wait()
        with pytest.raises(LaunchError) as caught:
            job.check([Outcome(0)])
    assert "hf_Zq7" not in str(caught.value) and "s3cret" not in str(caught.value)
    assert "HF_TOKEN=..." in str(caught.value)


def test_settings_of_nodes_are_refused_when_they_are_made_and_not_replaced():
    def wrong(error, words, **settings):
        refused(error, words, lambda: SlurmNodes(**settings))

    for value in (0, -1, 65):
        wrong(ValueError, f"^nodes must be from 1 to 64, not {value}$", nodes=value)
    wrong(ValueError, "^gpus must be from 1 to 1024, not 0$", gpus=0)
    for value in (False, True, 0.0, 1.0, "", "1"):
        wrong(TypeError, "^nodes must be from 1 to 64, not .*no whole number$", nodes=value)
        wrong(TypeError, "^gpus must be from 1 to .*no whole number$", gpus=value)
    for value in (0, "0", "00:00:00", "", -1, "1:2", "long"):
        wrong(ValueError, "^time must be minutes, or as .*, and more than nothing", time=value)
    for value in (False, 1.5):
        wrong(TypeError, "^time must be minutes, or a string such as", time=value)
    for name in ("account", "partition"):
        for value in ("", " "):
            wrong(ValueError, f"^{name} must be a name that ", **{name: value})
        for value in (0, False):
            wrong(TypeError, f"^{name} must be a string", **{name: value})
    wrong(TypeError, "^folder must be a path, not 5$", folder=5)
    wrong(TypeError, "^show must be True or False, not 'yes'$", show="yes")
    assert SlurmNodes(np.int64(2), gpus=np.int64(4)) == SlurmNodes(2, gpus=4)


# --- A file system that refuses for a while

REFUSALS = (errno.ESTALE, errno.EIO, errno.ENOENT, errno.ETIMEDOUT)


class Refusing:
    """Stands for a call that a file system refuses some times, and then allows."""

    def __init__(self, act, times):
        self.act, self.left = act, times

    def __call__(self, *arguments, **options):
        if self.left:
            self.left -= 1
            raise OSError(REFUSALS[self.left % len(REFUSALS)], "refused")
        return self.act(*arguments, **options)


@pytest.fixture
def job(tmp_path):
    """A job with one rank, whose folder is there; nothing is started."""
    job = SharedJob(None, 1, "cpu", tmp_path)
    job.path = tmp_path
    for name in (orders.ORDERS, *(f"{name}-0" for name in orders.FILES)):
        (tmp_path / name).touch()
    return job


def test_a_file_system_that_refuses_for_a_while_ends_no_job(job, tmp_path, monkeypatch):
    """By renaming the folder, as a file system that is gone; and by every error."""
    outcome = Outcome(0)
    orders.give(tmp_path / "notes-0", "on machine0")
    orders.give(tmp_path / "notes-0", "at work")
    tmp_path.rename(tmp_path.with_name("away"))
    for _ in range(3):
        job.look([outcome])
    assert outcome.machine is None and not job.complete
    threading.Timer(0.5, tmp_path.with_name("away").rename, [tmp_path]).start()
    orders.give(tmp_path / orders.ORDERS, orders.STOP)  # waits
    job.look([outcome])
    assert outcome.machine == "machine0" and outcome.at_work
    assert orders.Reader().lines(tmp_path / orders.ORDERS) == [orders.STOP]
    body = cloudpickle.dumps({"value": 7})
    (tmp_path / "report-0").write_bytes(AT_WORK + struct.pack("!Q", len(body)) + body)
    orders.give(tmp_path / "notes-0", orders.REPORTED)
    job.asked = True
    (tmp_path / "stacks-0").write_text("stack")
    refusing = Refusing(Path.read_bytes, 11)
    monkeypatch.setattr(Path, "read_bytes", lambda path: refusing(path))
    for _ in range(12):
        job.look([outcome])
    assert (
        outcome.report == {"value": 7} and job.complete and outcome.stacks == b"stack" and not refusing.left
    )
    refusing.left = 3
    (tmp_path / "output-0").write_text("written")
    job.leave([outcome])
    assert outcome.text == "written" and not tmp_path.exists()
    tmp_path.mkdir()


def test_a_folder_that_stays_away_is_named(job, tmp_path, monkeypatch):
    monkeypatch.setattr(orders, "PATIENCE", 0.3)
    job.look([Outcome(0)])
    tmp_path.rename(tmp_path.with_name("gone"))
    job.look([Outcome(0)])
    time.sleep(0.4)
    with pytest.raises(LaunchError, match="^the job's folder .* could not be read for .* s: No such file"):
        job.look([Outcome(0)])
    tmp_path.mkdir()
    (tmp_path / "hostfile").mkdir()
    with pytest.raises(IsADirectoryError):
        hosts.read(tmp_path / "hostfile")


def test_writing_and_opening_wait_as_well(job, tmp_path, monkeypatch):
    opened = Refusing(os.open, 4)
    monkeypatch.setattr(os, "open", opened)
    orders.append(tmp_path / "output-0", b"part", flush=True)
    assert not opened.left
    written = Refusing(os.write, 2)
    monkeypatch.setattr(os, "write", written)
    orders.give(tmp_path / "notes-0", "on machine0")
    synced = Refusing(os.fsync, 2)
    monkeypatch.setattr(os, "fsync", synced)
    guard.order_to_stop({"folder": str(tmp_path)})
    assert not written.left and not synced.left
    assert (tmp_path / "output-0").read_bytes() == b"part" and (
        tmp_path / "notes-0"
    ).read_text() == "on machine0\n"
    assert (tmp_path / orders.ORDERS).read_text() == "stop\n"
    (tmp_path / "hostfile").write_text("machine0 slots=2\n")
    text = Refusing(Path.read_text, 2)
    text.left = 2
    monkeypatch.setattr(orders, "MISTAKES", ())
    monkeypatch.setattr(Path, "read_text", lambda path, *words: text(path, *words))
    assert hosts.read(tmp_path / "hostfile") == {"machine0": 2}


def test_a_keeper_outlives_a_break_of_its_file_system_and_ends_with_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(orders, "PATIENCE", 0.5)
    folder, away = tmp_path / "job", tmp_path / "away"
    away.mkdir()
    (away / orders.ORDERS).touch()
    rank = subprocess.Popen(["sleep", "60"], start_new_session=True)
    keeper = Keeper(rank.pid, folder, "0", [])
    threading.Timer(0.3, away.rename, [folder]).start()
    threading.Timer(1.2, folder.rename, [away]).start()
    monkeypatch.setattr(remote, "end_orphans", lambda: None)  # whose children are these tests'
    started = time.monotonic()
    keeper.keep()
    assert 1.2 < time.monotonic() - started < 20 and rank.wait(20) == -signal.SIGKILL


def test_a_keeper_writes_the_beginning_and_the_end_of_a_long_output(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "KEPT_OUTPUT", 100_000)
    monkeypatch.setattr(remote, "end_orphans", lambda: None)  # whose children are these tests'
    for name in (orders.ORDERS, "output-0", "report-0", "notes-0"):
        (tmp_path / name).touch()
    readers, writers = zip(*(os.pipe() for _ in range(3)))
    rank = subprocess.Popen(
        ["sh", "-c", "echo first; yes 123456789 | head -100000; echo last; exec sleep 60"],
        stdout=writers[1],
        start_new_session=True,
    )
    os.close(writers[1])
    keeper = Keeper(rank.pid, tmp_path, "0", readers)
    threading.Timer(2, orders.give, [tmp_path / orders.ORDERS, orders.STOP]).start()
    keeper.keep()
    written = (tmp_path / "output-0").read_text()
    assert written.startswith("first\n123") and written.endswith("789\nlast\n") and len(written) < 150_000
    assert "bytes were not kept ..." in written and rank.wait(20) == -signal.SIGKILL
    for descriptor in (*readers, writers[0], writers[2]):
        os.close(descriptor)
