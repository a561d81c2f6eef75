"""Why a job failed, said once: the guilty rank, its cause, the learner's own lines, and a hint.

Nothing that the launcher, torch or a library says varies from run to run (no process id, port, address or
time), so that a stored output can be compared.  What a learner's own code raised stays as it is.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .describing import cut
from .outcome import LINE, Outcome, is_learners, names, place, short_traceback

if TYPE_CHECKING:
    from .outcome import Hides
    from .waits import Frame

# What a collective says when another rank has gone.  Only a message's words depend on it, never who is named.
LOST = re.compile(
    r"closed by peer|reset by peer|broken pipe|gloo/transport|socket closed|connection refused|tcpstore"
    r"|failed to recv|recvvalue failed|store->get|remote process exited|nccl communicator was aborted"
    r"|ncclremoteerror|the client socket",
    re.IGNORECASE,
)
# by a rank that waited in vain
CLOSED = re.compile(r"closed by peer|reset by peer|broken pipe", re.IGNORECASE)
TORCHS = re.compile(r"gloo|tcpstore|c10d|client socket|server socket|nccl", re.IGNORECASE)
ADDRESS = re.compile(r"(127\.0\.0\.1|10\.77\.0\.\d+|localhost|\[?::1\]?)(\W{1,3})\d{1,5}\b"), r"\1\2..."
CELL = re.compile(r"/tmp/ipykernel_\d+/\d+\.py"), "cell"
VARIES = ((re.compile(r"\bat 0x[0-9a-fA-F]+"), "at 0x..."), CELL)
HINTS = {  # by what is looked for in a failure
    r"Type fp16 is not supported": 'this CPU cannot compute in fp16: use "bf16": {"enabled": True} instead',
    r"train_batch_size is not equal": "train_batch_size must equal train_micro_batch_size_per_gpu x "
    "gradient_accumulation_steps x ranks",
    r"Default process group has not been initialized|DeepSpeed backend not set"
    r"|'NoneType' object has no attribute '\w+'\ndeepspeed/comm/": "call deepspeed.init_distributed() first",
    r"CUDA out of memory": "the model and its states do not fit on this GPU: fewer tokens, a smaller model, "
    "or a higher ZeRO stage",
    r"name '\w+' is not defined": "a rank knows what its function uses when `launch` is called: run the cell "
    "that defines the name first",
    r"Timed out waiting \d+ms": "a rank never came to this collective, or its machine cannot be reached",
    r"\Alost its connection": "no rank failed before: one has closed its connections, as "
    "`destroy_process_group` does",
    r"gloo::EnforceNotMet": "a message had another size than the rank expected: all ranks must send the same "
    "tensors, in the same order",
    r"No module named": "the module is not installed in this environment, or its folder is not on sys.path",
}
NO_SLOTS = "object has no attribute '__dict__'"  # what cloudpickle's copy of such a class lacks, says pickle
SLOTS = (
    "An object of a class of a cell with `__slots__` cannot come back: cloudpickle leaves the slots out.  "
    "Return its values (`dataclasses.asdict`), or define the class without `slots=True`, or with "
    "`frozen=True` too."
)
PLAIN = "Return plain data (numbers, strings, lists, dicts, CPU tensors) instead."
MESSAGE = 20_000  # characters of the whole


class LaunchError(RuntimeError):
    """A job that could not be started, or did not end as it should."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


HUNG = ("busy", "deserted", "apart")  # kinds of failures


class RankError(LaunchError):
    """A rank failed.

    Attributes:
        rank: the guilty one, the lowest of `ranks`, which failed alike.
        outputs: what every rank had written, in rank order.
        kind: "raised"; "unsendable", its value; "ended", without a report; "never began"; or of those that
            hang "busy", in no collective; "deserted", in one that ranks which have returned never entered;
            "apart", in one where no other rank is.
        raised: the name of the class that it raised, else "".
        frames: (file, line, function) of where it stood, outermost first.
    """

    def __init__(
        self,
        words: Callable[[Hides], str],
        ranks: Sequence[int],
        outputs: list[str],
        kind: str,
        raised: str = "",
        frames: Sequence[Frame] = (),
    ) -> None:
        super().__init__(words(nothing))
        self.without = words  # (frame -> whether to leave it out) -> the message without those places
        self.rank, self.ranks, self.outputs = ranks[0], tuple(ranks), outputs
        self.kind, self.raised, self.frames = kind, raised, tuple(frames)

    @property
    def hung(self) -> bool:
        """Whether it was still running at the deadline, in its function."""
        return self.kind in HUNG


def nothing(frame: Frame) -> bool:
    """What to leave out of a message: no place."""
    return False


def exit_words(status: int | None, out_of_memory: bool) -> str:
    if status is None:
        return "ended without a report"
    if status >= 0:
        return f"left with exit status {status} before its function returned"
    word = signal.Signals(-status).name if -status in signal.valid_signals() else f"signal {-status}"
    return f"was killed by {word}" + (
        " (the system ran out of memory and killed it)" if out_of_memory and status == -signal.SIGKILL else ""
    )


def error_lines(outcome: Outcome, hides: Hides) -> tuple[str, list[str]]:
    """What a rank raised, and the lines below it."""
    error = outcome.error
    if "returned" not in error:
        return f"raised {named(error)}", [*short_traceback(error["frames"], hides), *belonging(error, hides)]
    way_out = SLOTS if NO_SLOTS in error["message"] else PLAIN
    what = f"returned a {error['returned']}, which cannot be sent back"
    return f"{what}: {error['type']}: {error['message']}", [f"  {way_out}"]


def named(error: dict) -> str:
    """Its type and its message.  Of what torch or a library wrote, nothing that varies."""
    message = error["message"]
    in_learners_line = not error["frames"] or is_learners(error["frames"][-1])
    if not (in_learners_line and (error.get("raised") or not error["notices"])):
        of_torch = error["notices"] or TORCHS.search(message)
        for pattern, instead in (*VARIES, *([ADDRESS] if of_torch else [])):
            message = pattern.sub(instead, message)
    return error["type"] + (f": {message}" if message else "")


def belonging(error: dict, hides: Hides) -> list[str]:
    """Notes, the members of a group with their own lines, and the cause."""
    lines = [f"  {line}" for note in error.get("notes", ()) for line in note.splitlines()]
    for number, member in enumerate(error.get("members", ()), 1):
        below = [*short_traceback(member["frames"], hides), *belonging(member, hides)]
        lines += [f"  member {number}: {named(member)}", *(f"  {line}" for line in below)]
    if error.get("more_members"):
        lines.append(f"  and {error['more_members']} more members")
    if error["cause"]:
        lines += [f"  caused by {named(error['cause'])}", *belonging(error["cause"], hides)]
    return lines


def last_words(outcome: Outcome) -> list[str]:
    lines = outcome.text.strip().splitlines()[-6:]
    return ["  Its last output:", *(f"    {line[-LINE:]}" for line in lines)] if lines else []


def hint(text: str) -> list[str]:
    """For the first line of a failure, the innermost place of what was raised, and what a rank that died had
    written."""
    return [f"  Hint: {said}" for pattern, said in HINTS.items() if re.search(pattern, text)][:1]


def first_to_fail(failed: Sequence[Outcome]) -> Outcome:
    """The first by the clock, but an error in a collective comes after every other, and one that perhaps is a
    notice after every rank's end, which is noted a little later than the others notice it.

    Of ranks that have failed alike the lowest is taken, and those whose connections others closed come last.
    """
    ends = any(outcome.error is None for outcome in failed)

    def order(outcome):
        return outcome.notices == "collective", bool(ends and outcome.notices), outcome.failed_at

    first = min(failed, key=order)
    alike = [outcome for outcome in failed if outcome.fault == first.fault]
    return min(alike, key=lambda outcome: bool(outcome.notices and CLOSED.search(outcome.error["message"])))


def failure(
    outcomes: Sequence[Outcome], out_of_memory: bool = False, remarks: Sequence[str] = ()
) -> RankError:
    """The error of a job in which a rank failed; `remarks` are lines about where it ran."""
    guilty = first_to_fail([outcome for outcome in outcomes if outcome.failed])
    error = guilty.error or {}

    def words(hides: Hides) -> str:
        if error:
            first, lines = error_lines(guilty, hides)
            told = "".join(map(place, error["frames"][-1:]))
            if guilty.notices == "collective" and LOST.search(first):
                first = first.replace("raised", "lost its connection to another rank:", 1)
        else:
            first = exit_words(guilty.status, out_of_memory)
            lines, told = short_traceback(guilty.where(), hides), guilty.text
            lines += last_words(guilty) if guilty.status and guilty.status > 0 else []
        return message_of([guilty], first, [*lines, *(remarks or hint(f"{first}\n{told}"))], outcomes)

    kind = "ended" if not error else "unsendable" if "returned" in error else "raised"
    frames = error["frames"] if error else guilty.where()
    return RankError(words, [guilty.rank], outputs_of(outcomes), kind, error.get("type", ""), frames)


def message_of(
    guilty: Sequence[Outcome], first: str, lines: Sequence[str], outcomes: Sequence[Outcome]
) -> str:
    return cut("\n".join([f"{names(guilty, len(outcomes))} {first}", *lines]), MESSAGE)


def outputs_of(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.text for outcome in outcomes]


def hang(outcomes: Sequence[Outcome], timeout: float, remarks: Sequence[str] = ()) -> RankError:
    """The error of a job that was still running at its deadline, from what its ranks answered; `remarks` are
    lines about where it ran."""
    finished = [outcome for outcome in outcomes if outcome.report is not None]
    running = [outcome for outcome in outcomes if outcome.report is None]
    waits = {outcome.rank: outcome.collective() for outcome in running}
    elsewhere = [outcome for outcome in running if waits[outcome.rank] is None]
    waiting = [outcome for outcome in running if waits[outcome.rank] is not None]
    limit = f"after {timeout:g} s"
    if guilty := [outcome for outcome in running if not outcome.at_work]:
        kind = "never began"
        first = f"never began {'their' if len(guilty) > 1 else 'its'} function (stopped {limit})"
    elif guilty := elsewhere:
        kind, first = "busy", f"hung: still running {limit}, in no collective"
        first += f", while {names(waiting)} waited for it" if waiting else ""
    elif finished:
        kind, guilty = "deserted", waiting
        first = f"hung in {waits[guilty[0].rank]}, which {names(finished)} never entered (stopped {limit})"
    else:
        kind, guilty = "apart", fewest_at_one_place(waiting)
        first = f"hung in {waits[guilty[0].rank]}"
        alone = len(guilty) < len(waiting)
        first += f", which no other rank entered (stopped {limit})" if alone else f" {limit}"

    def words(hides: Hides) -> str:
        lines = [*remarks]
        for outcome in outcomes:
            lines += stands(outcome, hides)
        return message_of(guilty, first, lines, outcomes)

    ranks = [outcome.rank for outcome in guilty]
    return RankError(words, ranks, outputs_of(outcomes), kind, frames=guilty[0].waits_at())


def stands(outcome: Outcome, hides: Hides) -> list[str]:
    """Lines on where a rank of a job that hangs stands."""
    if outcome.report is not None:
        return [f"  {names([outcome])}: had returned"]
    unknown = "no Python stack was given" if outcome.at_work else "not yet at work"
    stack = short_traceback(outcome.waits_at(), hides) or [f"  {unknown}"]
    return [f"  {names([outcome])}:", *(f"  {line}" for line in stack), *stands_elsewhere(outcome)]


def stands_elsewhere(outcome: Outcome) -> list[str]:
    """Where the rank itself stands, if that is not where the collective was begun that it waits for."""
    begun, stands = (learners_line(frames) for frames in (outcome.waits_at(), outcome.where()))
    return [f"    and has gone on to {place(stands)}"] if stands not in (None, begun) else []


def learners_line(frames: Sequence[Frame]) -> Frame | None:
    return next((frame for frame in reversed(frames) if is_learners(frame)), None)


def fewest_at_one_place(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Of ranks that wait, those at the learner's line where the fewest stand: the others wait for them."""
    groups: dict[Frame | None, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(learners_line(outcome.waits_at()), []).append(outcome)
    return min(groups.items(), key=lambda group: (len(group[1]), str(group[0])))[1]
