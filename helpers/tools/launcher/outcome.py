"""What the kernel knows of one rank, and how ranks and places in their code are named."""

import linecache
import re
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ..place import NAME, OURS
from .waits import ANSWER, BEGUN, Frame, waiting_in

TOOLS = NAME.rpartition(".")[2]  # the folder of these modules
KEPT_OUTPUT = 32_000_000  # bytes that a job keeps of what its ranks write, shared out equally
LINE = 300  # characters of a line that are shown
Hides = Callable[[Frame], bool]  # whether to leave a place out of a message


@dataclass
class Outcome:
    """What the kernel knows of one rank."""

    rank: int
    at_work: bool = False  # whether it has begun its function
    report: dict | None = None  # {"value": ...} or {"error": what `describing.describe` returns}
    machine: int | str | None = None  # number of one of `Machines`, or name of a cluster's node
    status: int | None = None  # exit status, negative for a signal; None while it runs
    ended_at: float | None = None  # seconds, of the clock of `describing.describe`: when its end was noted
    output: bytearray = field(default_factory=bytearray)  # what it wrote; where long, beginning and end
    stacks: bytearray = field(default_factory=bytearray)  # its answer when it was asked where it stands
    most: int = KEPT_OUTPUT  # bytes of its output that are kept, at least
    left_out: int = 0  # bytes between the beginning and the end

    @property
    def error(self) -> dict | None:
        return (self.report or {}).get("error")

    @property
    def failed(self) -> bool:
        return self.error is not None or (self.report is None and self.status is not None)

    @property
    def failed_at(self) -> float | None:
        """Seconds, by the clock that all ranks share."""
        return self.error["at"] if self.error else self.ended_at

    @property
    def notices(self) -> str | None:
        """What its error may be a notice of (`describing.notices`); None for an end without a report."""
        return self.error["notices"] if self.error else None

    @property
    def fault(self) -> tuple:
        """What is equal for ranks that failed alike, whatever their messages say."""
        return (self.error["type"], tuple(self.error["frames"])) if self.error else (self.status, self.rank)

    def add(self, name: str, part: bytes) -> None:
        """More of its `output` or its `stacks`, which lose their middle where they become too long."""
        text = getattr(self, name)
        text += part
        if len(text) > 1.5 * self.most:  # not at every byte too many: what follows is moved each time
            excess = len(text) - self.most
            del text[self.most // 2 : self.most // 2 + excess]
            self.left_out += excess

    @property
    def text(self) -> str:
        if not self.left_out:
            return self.output.decode("utf-8", "replace")
        beginning, end = self.output[: self.most // 2], self.output[self.most // 2 :]
        gap = f"\n[... {self.left_out:,} bytes were not kept ...]\n"
        return f"{beginning.decode('utf-8', 'ignore')}{gap}{end.decode('utf-8', 'ignore')}"

    def where(self) -> list[Frame]:
        """Its Python stack when it was asked, outermost first."""
        return self.frames("  File")

    def waits_at(self) -> list[Frame]:
        """Where the collective was begun that it waits for on a GPU, else its Python stack; outermost
        first."""
        return self.frames(BEGUN) or self.where()

    def frames(self, begin: str) -> list[Frame]:
        """What the lines of its answer say that begin so."""
        text = self.stacks.decode("utf-8", "replace")
        stack = re.findall(rf'^{begin} "(.*)", line (\d+) in (.*)$', text, re.M)
        return trim([(file, int(line), name) for file, line, name in reversed(stack)])

    def collective(self) -> str | None:
        """The collective that it waited in when it was asked, None where it stood elsewhere."""
        answer = re.search(rf"^{ANSWER}(\w+)$", self.stacks.decode("utf-8", "replace"), re.M)
        return waiting_in(self.where()) or (answer and answer[1])


def trim(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of the learner's function and of what it called, without the launcher's own, a ledger's,
    which only pass torch's calls on, and those of waiting for a cable's silence."""
    kept = []
    for frame in frames:
        file = Path(frame[0]).parts[-3:]
        if file[:2] == (TOOLS, "machines"):
            break
        if file == (TOOLS, "launcher", "rank.py"):
            kept.clear()
        elif file != (TOOLS, "launcher", "waits.py") and frame[2] != "__torch_dispatch__":
            kept.append(frame)
    return kept


@cache
def libraries() -> tuple[str, ...]:
    """Folders of what is no learner's, each with a slash: of Python's own modules, of what is installed
    beside them, and of torch and DeepSpeed, which may lie elsewhere, with what is installed beside them or
    alone in a clone."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    for name in ("torch", "deepspeed"):
        if (spec := find_spec(name)) and spec.origin:
            package = Path(spec.origin).parent
            is_installed = any(package.parent.glob(f"{name}-*.*-info"))
            folders.append(str(package.parent if is_installed else package))
    return tuple(f"{folder}/" for folder in dict.fromkeys(folders))


def is_learners(frame: Frame) -> bool:
    return not frame[0].startswith(libraries())


def place(frame: Frame) -> str:
    """File, line and function as a learner knows them: a cell has no file name."""
    file, line, name = frame
    if "ipykernel_" in file or file.startswith("<ipython-input"):
        file = "cell"
    else:
        for library in libraries():
            file = file.removeprefix(library)
        parts = Path(file).parts
        parts = parts[parts.index(OURS) :] if OURS in parts else parts[-3:]
        file = "/".join(parts).lstrip("/")
    return f"{file}, line {line}, in {name}"


def short_traceback(frames: Sequence[Frame], hides: Hides) -> list[str]:
    """The learner's own lines with their source, and the innermost library frame they led to, but for those
    that `hides` names."""
    shown = [frame for frame in frames if is_learners(frame)][-4:]
    if frames and not is_learners(frames[-1]):
        shown.append(frames[-1])
    shown = [frame for frame in shown if not hides(frame)]
    lines = []
    for frame in shown:
        lines.append(f"  {place(frame)}")
        source = linecache.getline(frame[0], frame[1]).strip()
        if source and is_learners(frame):
            lines.append(f"    {source[:LINE]}")
    return lines


def numbered(word: str, numbers: Sequence[int | str]) -> str:
    """'rank 1' or 'ranks 0, 2, 3'."""
    return f"{word}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def names(outcomes: Sequence[Outcome], of: int | None = None) -> str:
    """'ranks 0, 2' or, of so many and with machines, 'rank 3 of 4 on machine 1' ('on node n17')."""
    machines = sorted({outcome.machine for outcome in outcomes} - {None})
    said = numbered("rank", [outcome.rank for outcome in outcomes]) + (f" of {of}" if of else "")
    kind = "node" if machines and isinstance(machines[0], str) else "machine"
    return f"{said} on {numbered(kind, machines)}" if machines else said


def explain(interrupt: KeyboardInterrupt, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Let a KeyboardInterrupt say where the ranks stood, in a notebook instead of its traceback, elsewhere
    below it.  There are no `outcomes` where no rank had been started."""
    places = {}
    for outcome in outcomes:
        places.setdefault(standing(outcome), []).append(outcome)
    lines = [f"interrupted after {seconds:.0f} s" + ("" if outcomes else ", before any rank was started")]
    lines += [f"  {names(group)} {said}" for said, group in places.items()]
    interrupt.add_note("\n".join(lines))
    interrupt._render_traceback_ = lambda: lines


def standing(outcome: Outcome) -> str:
    """Where a rank stood: 'in barrier, cell line 10'."""
    if outcome.report is not None:
        return "had returned"
    if not outcome.at_work:
        return "had not begun"
    frames = outcome.waits_at()
    if not frames:
        return "gave no Python stack"
    frame = next((frame for frame in reversed(frames) if is_learners(frame)), frames[-1])
    file, line, name = place(frame).rsplit(", ", 2)
    return f"in {outcome.collective() or name.removeprefix('in ')}, {file} {line}"
