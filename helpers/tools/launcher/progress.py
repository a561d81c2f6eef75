"""What the learner sees and may do while a launch waits: one line, shown after a second and gone at the end;
and Ctrl-C."""

from __future__ import annotations

import html
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .outcome import Outcome

DELAY, INTERVAL = 1.0, 0.5  # seconds
# JupyterLab may store a line, as when the kernel is restarted: it hides itself 3 s after it was drawn last.
PASSING = (
    '<style>@keyframes passing {{ to {{ visibility: hidden }} }}</style><span style="animation: '
    'passing 0s 3s forwards">{}</span>'
)

_words: Callable[[], str] | None = None  # of `saying`


@contextmanager
def saying(words: Callable[[], str]) -> Iterator[None]:
    """Within, the line asks `words` what ranks at work do, and does not count those that are done."""
    global _words
    before, _words = _words, words
    try:
        yield
    finally:
        _words = before


class Progress:
    """Context manager: in a notebook one display that ends empty, in a terminal one line of stderr.  Inside
    Ctrl-C counts only where `tick` is called: starting and stopping ranks must not be cut short."""

    def __init__(self):
        self.started = self.last = time.monotonic()
        self.message, self.handle, self.shown = "the ranks are being started", None, False
        self.interrupt = self.handler = None  # the Ctrl-C that waits, and what it meant before

    def say(self, message: str) -> None:
        self.message = message

    def tick(self, outcomes: Sequence[Outcome] = ()) -> None:
        """Call often: lets a waiting Ctrl-C through, and draws at most twice a second."""
        if self.interrupt:
            interrupt, self.interrupt = self.interrupt, None
            self.handler(*interrupt)
        now = time.monotonic()
        if now - self.started < DELAY or now - self.last < INTERVAL:
            return
        self.last = now
        message = self.message
        if outcomes and all(outcome.at_work for outcome in outcomes):
            message = _words() if _words else how_many(outcomes)
        self._draw(f"{message} ... {now - self.started:.0f} s")

    def _draw(self, text):
        if in_notebook():
            from IPython.display import DisplayHandle

            if self.handle is None:
                self.handle = DisplayHandle()
                self.handle.display({}, raw=True)  # empty, so that nothing of it is ever stored or compared
            shown = {"text/html": PASSING.format(html.escape(text)), "text/plain": text}
            self.handle.update(shown if text else {}, raw=True)
        elif sys.stderr is not None and sys.stderr.isatty():
            print(f"\r{text:<100}" + ("" if text else "\r"), end="", file=sys.stderr, flush=True)
        self.shown = bool(text)

    def _put_off(self, *interrupt):
        self.interrupt = interrupt

    def __enter__(self):
        handler = signal.getsignal(signal.SIGINT)  # only the main thread is ever interrupted
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self.handler = handler
            signal.signal(signal.SIGINT, self._put_off)
        return self

    def __exit__(self, kind, error, traceback):
        try:
            if self.shown:
                self._draw("")
        finally:
            if self.handler:
                signal.signal(signal.SIGINT, self.handler)
        if self.interrupt and not isinstance(error, KeyboardInterrupt):
            self.handler(*self.interrupt)


def how_many(outcomes: Sequence[Outcome]) -> str:
    """That ranks are at work, and how many are done."""
    done = sum(outcome.report is not None for outcome in outcomes)
    return f"the ranks are at work, {done} of {len(outcomes)} done"


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
