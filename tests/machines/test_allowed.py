"""What is said where machines are not allowed, and what is refused before one is made; without ranks."""

import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.tools.launch.failures import LaunchError
from helpers.tools.machines import allowed, namespaces
from helpers.tools.machines.namespaces import Card, Machines, bytes_per_second

# A user namespace in which nobody may make another: what a system does that allows none.
FORBIDDEN = """
import os
from helpers.tools.machines.allowed import stay_who_we_are
from helpers.tools.machines.namespaces import problem
from helpers.tools.machines.switch import NEW_USER, call
parent, child = os.pipe(), os.pipe()
if not os.fork():
    os.read(parent[0], 1)
    stay_who_we_are(os.getppid())
    os.write(child[1], b".")
    os._exit(0)
call("unshare", NEW_USER)
os.write(parent[1], b".")
os.read(child[0], 1)
with open("/proc/sys/user/max_user_namespaces", "w") as most:
    most.write("0")
print(problem())
"""


def test_a_system_that_forbids_machines_is_explained_in_one_line_by_what_it_says():
    if reason := namespaces.problem():
        pytest.skip(reason)
    said = subprocess.run(
        [sys.executable, "-c", FORBIDDEN], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    cure = "`sudo sysctl -w user.max_user_namespaces=10000` does, until the next start"
    assert said.stdout == f"{allowed.NEEDS}, and this system does not allow them: {cure}\n", said.stderr


@pytest.mark.parametrize(
    "file, content, cure",
    [
        (
            "sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu) does",
        ),
        (
            "sys/kernel/unprivileged_userns_clone",
            "0\n",
            "`sudo sysctl -w kernel.unprivileged_userns_clone=1` (Debian) does",
        ),
        ("self/status", "NoNewPrivs:\t0\nSeccomp:\t2\n", "start it with `--security-opt seccomp=unconfined"),
        (
            "self/status",
            "NoNewPrivs:\t0\nSeccomp:\t0\n",
            "does not allow user namespaces (Operation not permitted): ask who looks after it",
        ),
    ],
)
def test_every_known_reason_has_its_cure(tmp_path, file, content, cure):
    file = tmp_path / "proc" / file
    file.parent.mkdir(parents=True)
    file.write_text(content)
    said = allowed.explain("user", "Operation not permitted", tmp_path)
    assert said.startswith(allowed.NEEDS) and cure in said and "\n" not in said


def test_another_system_than_linux_is_told_where_to_go(monkeypatch):
    monkeypatch.setattr(namespaces, "is_linux", lambda: False)
    with pytest.raises(LaunchError, match="WSL2"), Machines(2):
        pass


@pytest.mark.parametrize(
    "words, rate",
    [
        ("20 Mbit", 2_500_000),
        ("1.5 Gbit", 187_500_000),
        ("800kbit", 100_000),
        ("20 Mbit/s", 2_500_000),
        (None, None),
    ],
)
def test_a_bandwidth_is_bits_per_second(words, rate):
    assert bytes_per_second(words) == rate


@pytest.mark.parametrize("words", ["20", "20 MB", "fast", "0 Mbit", "0.001 kbit", 20])
def test_another_bandwidth_is_refused(words):
    with pytest.raises(ValueError, match='bandwidth must be in bits per second, as "20 Mbit"'):
        Machines(2, bandwidth=words)


def test_a_number_of_machines_is_checked():
    with pytest.raises(TypeError, match="whole number from 1 to 16, not 2.0"):
        Machines(2.0)
    with pytest.raises(ValueError, match="there can be 1 to 16 machines, not 17"):
        Machines(17)


def test_ranks_are_placed_in_blocks_or_as_told():
    three = Machines(3)
    assert three.place(6).of == [0, 0, 1, 1, 2, 2]
    assert three.place(4).of == [0, 0, 1, 1]
    assert three.place([2, 0]).of == [2, 0]
    with pytest.raises(ValueError, match="there is no machine 3: they are numbered from 0 to 2"):
        three.place([0, 3])


def test_differences_of_cards():
    assert Card(10, 20, 3, 4) - Card(1, 2, 1, 1) == Card(9, 18, 2, 3)
