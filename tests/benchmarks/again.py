"""The whole suite again and again, to find what fails by chance: `python tests/benchmarks/again.py [runs]`
prints a row for each run.

Every second run has a busy loop for each processor beside it.  What a run wrote lies in `work/again/`.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

from helpers.paths import ROOT, WORK

FOLDER = WORK / "again"
LONGEST = 5400  # seconds of one run


@contextmanager
def busy_processors():
    """A loop on each that does nothing else, as long as this process lives."""
    loops = [
        subprocess.Popen([sys.executable, "-c", f"import os\nwhile os.getppid() == {os.getpid()}: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(number):
    """One run, both parts whatever the first says: tests passed, names of those that failed, how it ended
    where not well, and its seconds."""
    started, log = time.monotonic(), FOLDER / f"{number}.txt"
    with log.open("w") as file:
        command = ["make", "--keep-going", "test-all"]
        suite = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = [f"status {status}"] if (status := suite.wait(LONGEST)) else []
        except subprocess.TimeoutExpired:
            ended = ["did not end"]
        finally:
            with suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(suite.pid, signal.SIGKILL)
    words = log.read_text()
    passed = sum(map(int, re.findall(r"^(?:.* )?(\d+) passed.* in [\d.]+s", words, flags=re.M)))
    return (
        passed,
        re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", words, flags=re.M),
        ended,
        time.monotonic() - started,
    )


def main(runs="20"):
    FOLDER.mkdir(parents=True, exist_ok=True)
    state = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    print(f"{runs} runs of {state or 'an unknown state'}, each in {FOLDER}")
    print(f"{'run':>4}  {'beside':<10} {'seconds':>7} {'passed':>6}  failed", flush=True)
    failed = 0
    for number in range(1, int(runs) + 1):
        if number % 2:
            beside, (passed, names, ended, seconds) = "nothing", run(number)
        else:
            with busy_processors():
                beside, (passed, names, ended, seconds) = "busy loops", run(number)
        failed += bool(ended)
        print(
            f"{number:>4}  {beside:<10} {seconds:>7.0f} {passed:>6}  {', '.join(names + ended) or 'none'}",
            flush=True,
        )
    sys.exit(f"{failed} of {runs} runs failed" if failed else 0)


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("ended from outside")
    )  # as Ctrl-C: what runs is ended, too
    main(*sys.argv[1:2])
