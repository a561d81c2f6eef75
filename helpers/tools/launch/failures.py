"""Why a job failed, said once: the guilty rank, its cause, the learner's own lines, and a hint where the
cause is known.

Nothing in a message varies from run to run (no process id, port, address or time), so that a stored output
can be compared.
"""

from __future__ import annotations

import linecache
import re
import signal
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

Frame = tuple[str, int, str]  # file, line and function of a place in a stack
COLLECTIVES = (
    "torch/distributed/",
    "deepspeed/comm/",
)  # in the path of a file in which a rank waits for others
# What a collective says when another rank has gone; only the words of a message depend on it, never who is
# named.
LOST = re.compile(
    r"closed by peer|reset by peer|broken pipe|gloo/transport|socket closed|connection "
    r"refused|failed to recv|recvvalue failed"
    r"|store->get|tcpstore|remote process exited|nccl communicator was "
    r"aborted|ncclremoteerror|the client socket",
    re.IGNORECASE,
)
CLOSED = re.compile(
    r"closed by peer|reset by peer|broken pipe", re.IGNORECASE
)  # as a rank does that has waited in vain
VARIES = (
    (re.compile(r"\bat 0x[0-9a-fA-F]+"), "at 0x..."),
    (re.compile(r"(127\.0\.0\.1|10\.77\.0\.\d+|localhost|\[?::1\]?)(\W{1,3})\d{1,5}\b"), r"\1\2..."),
    (re.compile(r"/tmp/ipykernel_\d+/\d+\.py"), "cell"),
)
HINTS = (
    (r"Type fp16 is not supported", 'this CPU cannot compute in fp16: use "bf16": {"enabled": True} instead'),
    (
        r"train_batch_size is not equal",
        "train_batch_size must equal train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks",
    ),
    (
        r"Default process group has not been initialized|DeepSpeed backend not set|'NoneType' "
        r"object has no attribute '\w+'\ndeepspeed/comm/",
        "call deepspeed.init_distributed() first",
    ),
    (
        r"CUDA out of memory",
        "the model and its states do not fit on this GPU: fewer tokens, a smaller model, or a "
        "higher ZeRO stage",
    ),
    (
        r"name '\w+' is not defined",
        "a rank knows what its function uses when `launch` is called: run the cell that defines "
        "the name first",
    ),
    (r"Timed out waiting \d+ms", "a rank never came to this collective, or its machine cannot be reached"),
    (
        r"\Alost its connection",
        "no rank failed before: one has closed its connections, as `destroy_process_group` does",
    ),
    (
        r"gloo::EnforceNotMet",
        "a message had another size than the rank expected: all ranks must send the same "
        "tensors, in the same order",
    ),
    (
        r"No module named",
        "the module is not installed in the course's environment, or its folder is not on sys.path",
    ),
)
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


class LaunchError(RuntimeError):
    """A job that could not be started, or did not end as it should."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class RankError(LaunchError):
    """A rank failed.  `rank` is the guilty one, `outputs` what every rank had written, in rank order."""

    def __init__(self, message: str, rank: int, outputs: list[str]) -> None:
        super().__init__(message)
        self.rank, self.outputs = rank, outputs


@dataclass
class Outcome:
    """What the kernel knows of one rank."""

    rank: int
    at_work: bool = False  # whether it has begun its function
    report: dict | None = None  # {"value": ...} or {"error": ...}
    machine: int | str | None = (
        None  # where it runs: number of one of `Machines`, name of a cluster's node; None for this machine
    )
    status: int | None = None  # exit status, negative for a signal; None while it runs
    ended_at: float | None = (
        None  # seconds, of the clock of `helpers.tools.launch.rank.describe`: when its end was noted
    )
    output: bytearray = field(default_factory=bytearray)
    stacks: bytearray = field(default_factory=bytearray)

    @property
    def error(self) -> dict | None:
        return (self.report or {}).get("error")

    @property
    def returned(self) -> bool:
        return self.report is not None and "value" in self.report

    @property
    def failed(self) -> bool:
        return self.error is not None or (self.report is None and self.status is not None)

    @property
    def failed_at(self) -> float | None:
        """Seconds, by the clock that all ranks share."""
        return self.error["at"] if self.error else self.ended_at

    @property
    def notices(self) -> str | None:
        """What its error may be a notice of (`helpers.tools.launch.rank.notices`); None for an end without a
        report."""
        return self.error["notices"] if self.error else None

    @property
    def fault(self) -> tuple:
        """What is equal for ranks that failed alike, whatever their messages say."""
        return (self.error["type"], tuple(self.error["frames"])) if self.error else (self.status, self.rank)

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")

    def where(self) -> list[Frame]:
        """Its Python stack when it was asked, outermost first, as (file, line, function)."""
        found = re.findall(
            r'^  File "(.*)", line (\d+) in (.*)$', self.stacks.decode("utf-8", "replace"), flags=re.M
        )
        return trim([(file, int(line), name) for file, line, name in reversed(found)])


def trim(frames: Sequence[Frame]) -> list[Frame]:
    """The frames below the launcher's own, without those of a ledger, which only passes torch's calls on, and
    of who waits for a cable's silence."""
    own = max(
        (index for index, frame in enumerate(frames) if Path(frame[0]).parts[-2:] == ("launch", "rank.py")),
        default=-1,
    )
    inner = next(
        (
            place
            for place, frame in enumerate(frames)
            if place > own and Path(frame[0]).parts[-3:-1] == ("tools", "machines")
        ),
        len(frames),
    )
    return [frame for frame in frames[own + 1 : inner] if frame[2] != "__torch_dispatch__"]


def is_learners(frame: Frame) -> bool:
    return not frame[0].startswith(LIBRARIES)


def place(frame: Frame) -> str:
    """File, line and function as a learner knows them: a cell has no file name."""
    file, line, name = frame
    if "ipykernel_" in file or file.startswith("<ipython-input"):
        file = "cell"
    else:
        for library in LIBRARIES:
            file = file.removeprefix(f"{library}/")
        parts = Path(file).parts
        file = (
            "/".join(parts[parts.index("helpers") :])
            if "helpers" in parts
            else "/".join(parts[-3:]).lstrip("/")
        )
    return f"{file}, line {line}, in {name}"


def short_traceback(frames: Sequence[Frame]) -> list[str]:
    """The learner's own lines with their source, and the innermost library frame they led to."""
    shown = [frame for frame in frames if is_learners(frame)][-4:]
    if frames and not is_learners(frames[-1]):
        shown.append(frames[-1])
    lines = []
    for frame in shown:
        lines.append(f"  {place(frame)}")
        source = linecache.getline(frame[0], frame[1]).strip()
        if source and is_learners(frame):
            lines.append(f"    {source}")
    return lines


def waiting_in(frames: Sequence[Frame]) -> str | None:
    """The collective that a stack stands in, or None."""
    for file, _, name in frames:
        if any(part in file for part in COLLECTIVES) and not name.startswith(
            ("wrapper", "_wrapper", "log_wrapper")
        ):
            return name
    return None


def numbered(word: str, numbers: Sequence[int | str]) -> str:
    """'rank 1' or 'ranks 0, 2, 3'."""
    return f"{word}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def names(outcomes: Sequence[Outcome], of: int | None = None) -> str:
    """'rank 1', 'ranks 0, 2, 3' or, where there are machines, 'rank 3 of 4 on machine 1' ('on node n17'), of
    so many ranks."""
    machines = sorted({outcome.machine for outcome in outcomes} - {None})
    said = numbered("rank", [outcome.rank for outcome in outcomes]) + (f" of {of}" if of else "")
    kind = "node" if machines and isinstance(machines[0], str) else "machine"
    return f"{said} on {numbered(kind, machines)}" if machines else said


def exit_words(status: int | None, out_of_memory: bool) -> str:
    if status is None:
        return "ended without a report"
    if status >= 0:
        return f"left with exit status {status} before its function returned"
    word = signal.Signals(-status).name if -status in signal.valid_signals() else f"signal {-status}"
    return f"was killed by {word}" + (
        " (the system ran out of memory and killed it)" if out_of_memory and status == -signal.SIGKILL else ""
    )


def error_lines(outcome: Outcome) -> tuple[str, list[str]]:
    error = outcome.error
    if "returned" in error:
        return (
            f"returned a {error['returned']}, which cannot be sent back: {error['type']}: {error['message']}",
            ["  Return plain data (numbers, strings, lists, dicts, CPU tensors) instead."],
        )
    lines = short_traceback(error["frames"])
    if error["cause"]:
        lines.append(f"  caused by {error['cause']}")
    return f"raised {error['type']}" + (f": {error['message']}" if error["message"] else ""), lines


def steady(text: str) -> str:
    """A text without the addresses and ports that differ from run to run."""
    for pattern, instead in VARIES:
        text = pattern.sub(instead, text)
    return text


def last_words(outcome: Outcome) -> list[str]:
    lines = outcome.text.strip().splitlines()[-6:]
    return ["  Its last output:", *(f"    {line}" for line in lines)] if lines else []


def hint(text: str) -> list[str]:
    """For the first line of a failure, the innermost place of what was raised, and what a rank that died had
    written."""
    return [f"  Hint: {said}" for pattern, said in HINTS if re.search(pattern, text)][:1]


def first_to_fail(failed: Sequence[Outcome]) -> Outcome:
    """The first by the clock, but an error in a collective comes after every other, and one that perhaps is a
    notice after every rank's end.

    An end is noted a little later than the others notice it.  Of ranks that have failed alike so far the
    lowest is taken, in every run the same, but of those that waited in vain before those whose connections
    these then closed.
    """
    ends = any(outcome.error is None for outcome in failed)
    first = min(
        failed,
        key=lambda outcome: (
            outcome.notices == "collective",
            bool(ends and outcome.notices),
            outcome.failed_at,
        ),
    )
    alike = [outcome for outcome in failed if outcome.fault == first.fault]
    return next(
        (outcome for outcome in alike if not (outcome.notices and CLOSED.search(outcome.error["message"]))),
        alike[0],
    )


def failure(
    outcomes: Sequence[Outcome], out_of_memory: bool = False, remarks: Sequence[str] = ()
) -> RankError:
    """The error of a job in which a rank failed; `remarks` are lines about where it ran."""
    guilty = first_to_fail([outcome for outcome in outcomes if outcome.failed])
    if guilty.error:
        first, lines = error_lines(guilty)
        told = "".join(map(place, guilty.error["frames"][-1:]))
        if guilty.notices == "collective" and LOST.search(first):
            first = first.replace("raised", "lost its connection to another rank:", 1)
    else:
        first = exit_words(guilty.status, out_of_memory)
        lines = short_traceback(guilty.where()) + (
            last_words(guilty) if guilty.status and guilty.status > 0 else []
        )
        told = guilty.text
    message = "\n".join(
        [
            f"{names([guilty], len(outcomes))} {first}",
            *lines,
            *remarks,
            *([] if remarks else hint(f"{first}\n{told}")),
        ]
    )
    return RankError(steady(message), guilty.rank, [outcome.text for outcome in outcomes])


def hang(outcomes: Sequence[Outcome], timeout: float, remarks: Sequence[str] = ()) -> RankError:
    """The error of a job that was still running at its deadline, from the stacks that its ranks gave;
    `remarks` are lines about where it ran."""
    running = [outcome for outcome in outcomes if outcome.report is None]
    finished = [outcome for outcome in outcomes if outcome.report is not None]
    waits = {outcome.rank: waiting_in(outcome.where()) for outcome in running}
    absent = [outcome for outcome in running if not outcome.at_work]
    elsewhere = [outcome for outcome in running if waits[outcome.rank] is None]
    waiting = [outcome for outcome in running if waits[outcome.rank] is not None]
    limit = f"after {timeout:g} s"
    if absent:
        guilty = absent
        said = f"never began {'their' if len(absent) > 1 else 'its'} function (stopped {limit})"
    elif elsewhere:
        guilty = elsewhere
        said = f"hung: still running {limit}, in no collective" + (
            f", while {names(waiting)} waited for it" if waiting else ""
        )
    elif finished:
        guilty = waiting
        said = f"hung in {waits[guilty[0].rank]}, which {names(finished)} never entered (stopped {limit})"
    else:
        places = {
            outcome.rank: next((frame for frame in reversed(outcome.where()) if is_learners(frame)), None)
            for outcome in waiting
        }
        smallest = min(set(places.values()), key=lambda at: (list(places.values()).count(at), str(at)))
        guilty = [outcome for outcome in waiting if places[outcome.rank] == smallest]
        others = [outcome for outcome in waiting if outcome not in guilty]
        said = f"hung in {waits[guilty[0].rank]}" + (
            f", which no other rank entered (stopped {limit})" if others else f" {limit}"
        )
    lines = []
    for outcome in outcomes:
        if outcome.report is not None:
            lines.append(f"  {names([outcome])}: had returned")
        else:
            unknown = "no Python stack was given" if outcome.at_work else "not yet at work"
            stack = short_traceback(outcome.where()) or [f"  {unknown}"]
            lines += [f"  {names([outcome])}:", *(f"  {line}" for line in stack)]
    message = "\n".join([f"{names(guilty, len(outcomes))} {said}", *remarks, *lines])
    return RankError(message, guilty[0].rank, [outcome.text for outcome in outcomes])
