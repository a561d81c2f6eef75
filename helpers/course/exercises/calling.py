"""A learner's formula, called in a process of its own: whatever it does there, the kernel stays as it was."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import time
import warnings
from multiprocessing import Pipe
from typing import TYPE_CHECKING

from helpers.course.exercises.comparing import plain, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from typing import NoReturn

LIMIT = 5.0  # seconds that a formula may take for one case
PRINTED = 2000  # characters that it may print


def call_with_each(function: Callable, cases: Sequence[dict]) -> Iterator[tuple[object, str]]:
    """Call a function with each of several cases of keyword arguments, and show what it prints.

    Yields:
        (the value as plain data, "") for each case, or (None, what the function did instead, in words).
    """
    reader, writer = Pipe(duplex=False)
    with warnings.catch_warnings():  # Python warns of forks beside threads; this one calls a formula and ends
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        work(function, cases, writer)
    writer.close()
    try:
        for _ in cases:
            yield next_outcome(reader)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        reader.close()


def next_outcome(reader: Connection) -> tuple[object, str]:
    deadline = time.monotonic() + LIMIT
    while reader.poll(max(deadline - time.monotonic(), 0)):
        try:
            printed, outcome = reader.recv()
        except EOFError:
            return None, "ended Python itself"
        if outcome:
            return outcome
        print(printed, end="")
    return None, f"was still running after {LIMIT:g} s"


def work(function: Callable, cases: Sequence[dict], writer: Connection) -> NoReturn:
    """In the new process: send (printed text, None) and ("", outcome), and end."""
    me = os.getpid()

    def send(*message: object) -> None:
        if os.getpid() != me:  # the function forked
            os._exit(0)
        writer.send(message)

    try:
        gc.disable()  # what is garbage here may still be of use in the kernel
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, (1 + len(cases)) * LIMIT)  # where no kernel is left to end this
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # its pool of threads stayed behind in the kernel
        sys.stdout = sys.stderr = Beginning(send)
        for case in cases:
            send("", called(function, case))
    finally:
        os._exit(0)


def called(function: Callable, case: dict) -> tuple[object, str]:
    try:
        return plain(function(**case)), ""
    except BaseException as error:  # SystemExit and KeyboardInterrupt too
        return None, f"raised {type(error).__name__}{message_of(error)}"


def message_of(error: BaseException) -> str:
    """ ": the message", or nothing where there is none to be had."""
    try:
        text = shortened(plain(str(error)))
    except Exception:
        text = ""
    return f": {text}" if text else ""


class Beginning(io.TextIOBase):
    """A file that passes on the beginning of what is written to it."""

    def __init__(self, send: Callable[[str, None], None]) -> None:
        self.send, self.left = send, PRINTED

    def write(self, text: str) -> int:
        if self.left > 0:
            rest = "\n[... more is not shown ...]\n" if len(text) > self.left else ""
            self.send(text[: self.left] + rest, None)
            self.left = 0 if rest else self.left - len(text)
        return len(text)
