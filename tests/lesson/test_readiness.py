"""The readiness check: a line each, a verdict in words, and an exit status."""

import subprocess
import sys

from helpers.lesson import readiness


def test_this_machine_is_ready():
    done = subprocess.run([sys.executable, "-m", "helpers.lesson.readiness"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "Ready: every lesson can run on this machine."
    for name in ("python", "torch", "cores", "memory", "loopback", "compiler", "2 ranks", "launch"):
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


def test_ranks_that_cannot_start_are_a_fault(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("rank 0 of 2 was killed by SIGKILL\nand more")

    monkeypatch.setattr(readiness, "launch", broken)
    (line,) = readiness.ranks()
    assert not line.fine and line.needed and line.found == "rank 0 of 2 was killed by SIGKILL"
