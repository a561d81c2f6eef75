"""What is said where machines are not allowed, and what is refused before one is made; without ranks."""

import subprocess
import sys

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.tools.launcher.failures import LaunchError
from helpers.tools.machines import allowed, namespaces
from helpers.tools.machines.namespaces import Machines
from helpers.tools.machines.network_cards import Card, bytes_per_second

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
    monkeypatch.setattr(namespaces, "LINUX", False)
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


BANDWIDTHS = (
    *(
        "20",
        "20 MB",
        "fast",
        "0 Mbit",
        "0.001 kbit",
        "",
        " ",
        "20 Mbit\n",
        "-1 Mbit",
        "+1 Mbit",
        "inf Gbit",
        "nan Gbit",
    ),
    *("1e3 Mbit", "1_000 Mbit", "\u0663 Mbit", "20 mbit", "9" * 400 + " Gbit", "99999999999 Gbit", "1. Mbit"),
    *(20, 0, 2.5, True, False, b"20 Mbit", ["20 Mbit"], np.int64(20)),
)


def test_another_bandwidth_is_refused():
    for words in BANDWIDTHS:
        with pytest.raises(ValueError, match='bandwidth must be in bits per second, as "20 Mbit"') as caught:
            Machines(2, bandwidth=words)
        assert len(str(caught.value)) < 300


def test_numbers_are_checked():
    three = Machines(np.int64(3))
    assert three.count == 3 and three.place(np.int64(6)).of == three.place(6).of
    for wrong in (2.0, True, False, "2", None, np.float64(2), np.bool_(True), [2]):
        with pytest.raises(TypeError, match="the number of machines must be from 1 to 16, not "):
            Machines(wrong)
    for wrong in (0, -1, 17, 10**400, np.int64(0)):
        with pytest.raises(ValueError, match="the number of machines must be from 1 to 16, not "):
            Machines(wrong)
    for wrong in (0, -1, 65, 10**30):
        with pytest.raises(ValueError, match="the number of ranks must be from 1 to 64, not "):
            three.place(wrong)
    for wrong in (True, False, 2.0, None, np.float64(2), np.array(2.0)):
        with pytest.raises(
            TypeError, match="the number of ranks must be from 1 to 64, not .*no whole number"
        ):
            three.place(wrong)
    for wrong in ("01", [0.0], [True], [None]):
        with pytest.raises(
            TypeError, match="the number of a machine must be from 0 to 2, not .*no whole number"
        ):
            three.place(wrong)
    for wrong in ([], "", np.array([])):
        with pytest.raises(ValueError, match="place needs at least one rank"):
            three.place(wrong)
    for command in ("true", b"true", [], None, {"true"}):
        with pytest.raises((TypeError, ValueError), match="command must be a list of words"):
            three.start(0, command)


def test_ranks_are_placed_in_blocks_or_as_told():
    three = Machines(3)
    assert three.place(6).of == [0, 0, 1, 1, 2, 2]
    assert three.place(4).of == [0, 0, 1, 1]
    assert three.place([2, 0]).of == [2, 0]
    with pytest.raises(ValueError, match="the number of a machine must be from 0 to 2, not 3"):
        three.place([0, 3])


def test_differences_of_cards():
    assert Card(10, 20, 3, 4) - Card(1, 2, 1, 1) == Card(9, 18, 2, 3)
