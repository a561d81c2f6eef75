"""When the kernel stops to wait for the reports of ranks that only wait."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers.tools.launcher import watching
from helpers.tools.launcher.failures import RankError
from helpers.tools.launcher.jobs import launch
from tests.launcher.support import eventually

BEGUN = "print(flush=True)"
SLEEPS, WORKS = f"import sys; {BEGUN}; sys.stdin.read()", f"{BEGUN}\nwhile True: pass"
STARTS = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {WORKS!r}]); child.wait()"


@pytest.fixture
def process():
    started = []

    def start(code):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes))
        assert started[-1].stdout.readline() == b"\n"
        return started[-1].pid

    yield start
    for one in started:
        os.killpg(one.pid, signal.SIGKILL)
        one.communicate()


def test_who_sleeps_is_told_from_who_works_and_from_who_has_ended(process):
    asleep, at_work = process(SLEEPS), process(WORKS)
    assert eventually(lambda: watching.activity([asleep]) is not None)
    assert watching.activity([asleep]) == watching.activity([asleep])
    assert eventually(lambda: watching.activity([asleep, at_work]) is None)
    assert watching.activity([asleep, process(STARTS)]) is None  # it sleeps, and its child works
    assert watching.activity([asleep, None]) is None and watching.activity([2**22 + 1]) is None


def looks(monkeypatch, *seen):
    """What a standstill of three seconds says at looks a second apart."""
    monkeypatch.setattr(watching, "STILL", 3)
    clock, found = iter(range(len(seen))), []
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    left = iter(seen)
    watched = watching.Standstill(SimpleNamespace(activity=lambda outcomes: next(left)))
    for _ in seen:
        found.append(watched.reached([]))
    return found


def test_it_takes_a_while_without_any_activity(monkeypatch):
    assert looks(monkeypatch, 1, 1, 1, 1, 1) == [False, False, False, True, True]
    assert looks(monkeypatch, 1, 1, 1, 2, 2, 2, 2) == [False] * 6 + [True]
    assert looks(monkeypatch, 1, 1, 1, None, 1, 1, 1, 1) == [False] * 7 + [True]
    assert looks(monkeypatch, *[None] * 9) == [False] * 9


def one_fails(busy=False):
    import os
    import subprocess
    import sys
    import time

    if busy and os.environ["RANK"] == "0":
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import time\nuntil = time.monotonic() + 1.5\nwhile time.monotonic() < until: pass",
            ],
            timeout=60,
        )
    if busy or os.environ["RANK"] == "1":
        raise ValueError("seven")
    time.sleep(600)


def test_ranks_that_sleep_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(watching, "GRACE", 300.0)  # beyond a test's patience: only the standstill ends it
    with pytest.raises(RankError, match="rank 1 of 4 raised ValueError: seven"):
        launch(one_fails, 4, device="cpu")


def test_a_rank_whose_child_works_is_waited_for_and_the_lowest_of_those_that_failed_alike_is_named(
    monkeypatch,
):
    monkeypatch.setattr(watching, "GRACE", 30.0)
    with pytest.raises(RankError, match="rank 0 of 2 raised ValueError: seven"):
        launch(one_fails, 2, {"busy": True}, device="cpu")
