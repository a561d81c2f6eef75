"""The readiness check: a line each, a verdict in words, and an exit status."""

import subprocess
import sys

import pytest
from helpers.course.lesson import readiness


@pytest.mark.ranks
def test_this_machine_is_ready():
    done = subprocess.run(
        [sys.executable, "-m", "helpers.course.lesson.readiness"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "Ready: every lesson can run on this machine."
    for name in (
        "python",
        "torch",
        "cores",
        "memory",
        "loopback",
        "compiler",
        "machines",
        "2 ranks",
        "launch",
    ):
        assert f"  {name} " in done.stdout


def test_a_fault_says_what_to_do_and_fails(monkeypatch, capsys):
    def no_loopback(*arguments, **options):
        raise OSError("not permitted")

    monkeypatch.setattr(readiness.socket, "create_server", no_loopback)
    monkeypatch.setattr(readiness, "ranks", lambda: ())
    assert readiness.main() == 1
    shown = capsys.readouterr().out
    assert "FAIL  loopback" in shown and "allow it in the firewall" in shown
    assert shown.rstrip().endswith("Not ready: loopback. The lines above say what to do.")


def test_a_missing_compiler_is_only_a_note(monkeypatch):
    monkeypatch.setattr(readiness.shutil, "which", lambda name: None)
    line = next(line for line in readiness.machine() if line.name == "compiler")
    assert str(line).startswith("note  compiler") and not line.needed


def test_machines_that_are_not_allowed_are_only_a_note_that_says_how_to_allow_them(monkeypatch):
    monkeypatch.setattr(readiness, "problem", lambda: "allow them so")
    line = next(line for line in readiness.machine() if line.name == "machines")
    assert str(line).startswith("note  machines") and str(line).endswith("allow them so") and not line.needed


def test_ranks_that_cannot_start_are_a_fault(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("rank 0 of 2 was killed by SIGKILL\nand more")

    monkeypatch.setattr(readiness, "launch", broken)
    (line,) = readiness.ranks()
    assert not line.fine and line.needed and line.found == "rank 0 of 2 was killed by SIGKILL"


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Full checks are counted instead of run; the stamp lies elsewhere."""
    full = []
    monkeypatch.setattr(readiness, "WORK", tmp_path / "work")
    monkeypatch.setattr(readiness, "ranks", lambda: full.append(1) or [readiness.Line("2 ranks", "fine")])
    return full


def test_with_once_the_ranks_are_tried_at_the_first_time_only(counted, capsys):
    assert readiness.main(["--once"]) == 0 and len(counted) == 1
    assert "OK    python" in capsys.readouterr().out
    assert readiness.main(["--once"]) == 0 and len(counted) == 1
    shown = capsys.readouterr().out
    assert "OK  " not in shown and shown.rstrip().endswith("(checked before; `make check` checks again).")
    assert readiness.main([]) == 0 and len(counted) == 2


def test_what_is_quick_is_looked_at_every_time(counted, monkeypatch, capsys):
    readiness.main(["--once"])
    monkeypatch.setattr(readiness.available, "free_memory", lambda: 10**8)
    assert readiness.main(["--once"]) == 1 and len(counted) == 1
    assert "FAIL  memory" in capsys.readouterr().out


def test_another_environment_is_checked_in_full(counted, monkeypatch):
    readiness.main(["--once"])
    monkeypatch.setattr(readiness.sys, "prefix", "/elsewhere")
    readiness.main(["--once"])
    assert len(counted) == 2


def test_a_machine_that_failed_is_checked_in_full_again(counted, monkeypatch):
    monkeypatch.setattr(
        readiness, "ranks", lambda: counted.append(1) or [readiness.Line("2 ranks", "hung", False)]
    )
    assert readiness.main(["--once"]) == readiness.main(["--once"]) == 1
    assert len(counted) == 2
