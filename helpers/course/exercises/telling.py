"""Verdicts as a learner sees them: a mark and a colour with the words, in a notebook; the same words
elsewhere."""

from __future__ import annotations

import html
import re
import sys

CORRECT, WRONG, EMPTY = "correct", "not yet", "not written yet"
MARKS = {
    EMPTY: ("○", "#666666"),
    WRONG: ("✗", "#b04e00"),
    CORRECT: ("✓", "#007a59"),
}  # distinct for colour-blind eyes
LOOK = "border-left: 4px solid {colour}; padding: 2px 10px; white-space: pre-wrap"
# The verdict's own ground: no colour of words can be read both on white and on a dark page.
HEAD = "background: {colour}; color: white; padding: 0 6px; border-radius: 3px"


def marked(verdict: str) -> str:
    """The verdict behind its mark: "✓ correct in 4 ranks"."""
    return f"{look_of(verdict)[0]} {verdict}"


def look_of(verdict: str) -> tuple[str, str]:
    return next((look for begin, look in MARKS.items() if verdict.startswith(begin)), ("·", "#0072b2"))


def tell(verdict: str) -> None:
    """Show a verdict.  The plain text is what stored outputs are compared by."""
    mark, colour = look_of(verdict)
    if not in_notebook():
        print(f"{mark} {verdict}")
        return
    from IPython.display import display

    head = next((begin for begin in MARKS if verdict.startswith(begin)), "")
    ground = HEAD.format(colour=colour) if head else ""
    words = f'<strong style="{ground}">{mark} {head}</strong>{as_html(verdict[len(head) :])}'
    display(
        {
            "text/plain": f"{mark} {verdict}",
            "text/html": f'<div style="{LOOK.format(colour=colour)}">{words}</div>',
        },
        raw=True,
    )


def as_html(text: str) -> str:
    """Words with what stands in backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
