"""One line that says what a launch waits for: shown after a second, updated in place, gone at the end."""

from __future__ import annotations

import sys
import time

DELAY, INTERVAL = 1.0, 0.5  # seconds


class Progress:
    """Context manager.  In a notebook one display that ends empty; in a terminal one line of stderr; elsewhere nothing."""

    def __init__(self):
        self.started = self.last = time.monotonic()
        self.message, self.handle, self.shown = "the ranks are at work", None, False

    def say(self, message):
        self.message = message

    def tick(self, outcomes=()):
        """Call often; draws at most twice a second."""
        now = time.monotonic()
        if now - self.started < DELAY or now - self.last < INTERVAL:
            return
        self.last = now
        done = f", {sum(outcome.report is not None for outcome in outcomes)} of {len(outcomes)} ranks done" if outcomes else ""
        self._draw(f"{self.message}{done} ... {now - self.started:.0f} s")

    def _draw(self, text):
        if _in_notebook():
            from IPython.display import DisplayHandle

            if self.handle is None:
                self.handle = DisplayHandle()
                self.handle.display({}, raw=True)  # empty, so that nothing of it is ever stored or compared
            self.handle.update({"text/plain": text} if text else {}, raw=True)
        elif sys.stderr is not None and sys.stderr.isatty():
            print(f"\r{text:<100}" + ("" if text else "\r"), end="", file=sys.stderr, flush=True)
        self.shown = bool(text)

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        if self.shown:
            self._draw("")


def _in_notebook():
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
