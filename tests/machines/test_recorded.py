"""What a lesson shows of machines where there are none: what was recorded, and words that say so."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from helpers.course.recording import on_machines as recorded
from helpers.course.recording.on_machines import OnMachines
from helpers.paths import ROOT
from helpers.tools.launcher.failures import LaunchError
from tests.machines.test_allowed import FORBIDDEN


@dataclass
class Counted:
    sent: int


def job(place, limit=None):
    return [Counted(len(place)), (1.5, {0: "text"})]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An `OnMachines` whose recording lies in a folder of its own, and that is told what is missing."""
    on_machines = OnMachines("00", missing=lambda: None)
    on_machines.file = tmp_path / "machines" / "00.json"
    monkeypatch.setenv(recorded.RECORDING, "yes")
    return on_machines


def test_what_was_made_here_is_shown_again_where_nothing_can_be_made(here, capsys):
    made = here(job, place=[0, 1], limit="20 Mbit")
    assert made == [{"sent": 2}, [1.5, {"0": "text"}]]  # plain in both cases, so that a cell finds the same
    here.missing = lambda: "machines need a reason"
    assert here(job, limit="20 Mbit", place=[0, 1]) == made
    said = capsys.readouterr().out
    assert (
        said.startswith("○ recorded 20")
        and said.endswith(", since here machines need a reason\n")
        and said.count("\n") == 1
    )


def test_what_was_not_recorded_is_named(here):
    here(job, place=[0, 1])
    here.missing = lambda: "machines need a reason"
    with pytest.raises(
        LaunchError, match=r"^machines need a reason; and job\(place=\[0, 0\]\) was not recorded"
    ):
        here(job, place=[0, 0])


def test_functions_are_told_apart_by_their_names(here):
    assert recorded.key(job, {"function": test_functions_are_told_apart_by_their_names, "b": 1}) == (
        "job(b=1, function=test_functions_are_told_apart_by_their_names)"
    )


def test_nothing_is_written_unless_asked_for(here, monkeypatch):
    monkeypatch.delenv(recorded.RECORDING)
    here(job, place=[0, 1])
    assert not here.file.exists()


def test_what_cannot_be_written_down_is_refused(here):
    with pytest.raises(TypeError, match="a set cannot be recorded: return numbers, text, lists and dicts"):
        here(set)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "recorded" / "machines").glob("*.json")), ids=lambda path: path.stem
)
def test_a_recording_says_where_it_was_made_and_names_no_place_of_it(file):
    kept = json.loads(file.read_text())
    assert kept["values"] and " on Linux, " in kept["label"] and "DeepSpeed" in kept["label"]
    assert not [
        word for word in ("/home/", "/tmp/", "/root/", "/work/", str(ROOT)) if word in file.read_text()
    ]


def test_a_system_that_forbids_machines_shows_them():
    """A real one: a user namespace in which nobody may make another."""
    if recorded.machines_missing():
        pytest.skip(recorded.machines_missing())
    ask = FORBIDDEN.replace(
        "print(problem())",
        "from helpers.course.recording.on_machines import "
        "OnMachines\nprint(OnMachines('18')(who, place=[0, 0, 1, 1])[3])",
    )
    ask = "def who(place):\n    raise AssertionError\n" + ask
    said = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, timeout=60)
    line, shown = said.stdout.splitlines()
    assert (
        line.startswith("○ recorded")
        and "user.max_user_namespaces" in line
        and "'machine': 'machine1'" in shown
    ), said.stderr
