"""In a rank: an exception as plain data, since its class may exist there only."""

from __future__ import annotations

import dis
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

ACROSS = "LAUNCH_ACROSS"  # set where ranks run on machines that have no clock in common but that of the day
# beginnings of files that send and receive, so that their errors tell of another rank
COMMUNICATING = (
    "torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py",
    "torch/distributed/rendezvous.py", "torch/distributed/_functional_collectives",
    "torch/distributed/nn/functional.py", "torch/distributed/collective_utils.py",
    "torch/distributed/utils.py", "torch/distributed/_state_dict_utils.py",
    "torch/distributed/algorithms/ddp_comm_hooks/", "torch/distributed/rpc/", "deepspeed/comm/",
)  # fmt: skip
RANK, PARCEL, WAITS = (
    os.path.join(os.path.dirname(__file__), name) for name in ("rank.py", "parcel.py", "waits.py")
)
MESSAGE = 4_000  # characters of a message that are shown
MEMBERS, LEVELS, FRAMES = 8, 4, 100  # how many of each are described: the rest is counted or left out
PASS_ON = ("__torch_dispatch__", "__pass_on__")  # functions that pass a call on: of a ledger, of a diary


def cut(text: str, most: int = MESSAGE, of: str = "") -> str:
    """A text as a plain str: its beginning and its end where it is long."""
    text = str.__str__(text).encode("utf-8", "backslashreplace").decode()
    if len(text) <= most:
        return text
    left_out = len(text) - 2 * (most // 2)
    return f"{text[: most // 2]}\n[... {left_out:,} more characters{of} ...]\n{text[-(most // 2) :]}"


def said(value: object) -> str:
    """What `str` says of a value."""
    try:
        return cut(str(value))
    except BaseException as problem:
        return f"(its message cannot be shown: {type(problem).__name__})"


def notices(error: BaseException) -> str | None:
    """What an error may be a notice of: "collective", another rank's end, where it came out of a collective;
    "perhaps", where it came out of C, as from a handle's `wait()`, or has to do with such an error.  Else
    None: its cause lies in this rank."""
    words = [notice(part) for part in related(error)]
    return words[0] or ("perhaps" if any(words) else None)


def notice(error: BaseException) -> str | None:
    """The same of one error alone."""
    parts = traceback_of(error)
    if not isinstance(error, (RuntimeError, OSError)) or not parts:
        return None
    if any(part in parts[-1].tb_frame.f_code.co_filename for part in COMMUNICATING):
        return "collective"
    return "perhaps" if isinstance(error, RuntimeError) and not raised_in_python(error) else None


def related(error: BaseException) -> Iterator[BaseException]:
    """An error, those that were being handled when it was raised, and the members of groups; each once."""
    left, seen = [error], set()
    while left:
        error = left.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            left += [error.__context__, *getattr(error, "exceptions", ())]


def traceback_of(error: BaseException) -> list[TracebackType]:
    """Its traceback, outermost frame first, without the launcher's own frames."""
    parts, part = [], error.__traceback__
    while part:
        parts.append(part)
        part = part.tb_next
    files = [part.tb_frame.f_code.co_filename for part in parts]
    begin = max((index for index, file in enumerate(files) if file in (RANK, PARCEL)), default=-1)
    return [part for part, file in zip(parts[begin + 1 :], files[begin + 1 :]) if file != WAITS]


def raised_in_python(error: BaseException) -> bool:
    """Whether the innermost frame of its traceback stands in a `raise`, and not in a call into C."""
    for part in traceback_of(error)[-1:]:
        return dis.opname[part.tb_frame.f_code.co_code[part.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return False


def describe(error: BaseException, level: int = 0) -> dict[str, Any]:
    """An exception as plain data.  Frames are (file, line, function), outermost first; `at` is the time in
    seconds, of a clock that all ranks share."""
    codes = [(part.tb_frame.f_code, part.tb_lineno) for part in traceback_of(error)[-FRAMES:]]
    frames = [(code.co_filename, line, code.co_name) for code, line in codes]
    members = getattr(error, "exceptions", ()) if isinstance(error, BaseExceptionGroup) else ()
    cause = error.__cause__ if level < LEVELS else None
    return {
        "at": time.time() if ACROSS in os.environ else time.monotonic(),
        "notices": notices(error) if level == 0 else notice(error),
        "type": cut(type(error).__name__, 200),
        "message": said(error),
        "raised": raised_in_python(error),
        "frames": [frame for frame in frames if frame[2] not in PASS_ON],
        "notes": notes(error),
        "members": [describe(member, level + 1) for member in members[:MEMBERS] if level < LEVELS],
        "more_members": max(len(members) - MEMBERS, 0),
        "cause": describe(cause, level + 1) if cause else None,
    }


def notes(error: BaseException) -> list[str]:
    """What was added to an exception, and the line that could not be parsed."""
    added = getattr(error, "__notes__", None) or ()
    added = added if isinstance(added, (list, tuple)) else (added,)
    line = (error.text,) if isinstance(error, SyntaxError) and error.text else ()
    return [said(note).rstrip() for note in (*line, *added)[:MEMBERS]]


def undescribable(problem: BaseException) -> dict[str, Any]:
    """In place of an exception that cannot be looked at."""
    words = "an exception cannot be shown, since its own methods fail when it is looked at"
    return describe(RuntimeError(f"{words}: {type(problem).__name__}"))
