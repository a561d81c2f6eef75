"""`python -m helpers.tools.rehearsal`: will a training fit?  A few of its ranks are rehearsed, each in
seconds to minutes and a little memory."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from helpers.tools.launch.forked.forkservers import preload
from helpers.tools.rehearsal import answer, question
from helpers.tools.rehearsal.asked import told as asked_for
from helpers.tools.rehearsal.drawing import draw
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.rehearsing import RehearsalError, rehearse

if TYPE_CHECKING:
    from helpers.tools.rehearsal.asked import Place

FITS, DOES_NOT_FIT, FAILED = 0, 1, 2  # exit statuses
OPTIONS = {  # name: what it is
    "model": "a configuration of transformers (a file, or a folder with config.json), or a GPTSize as JSON",
    "deepspeed": "DeepSpeed's configuration, JSON with comments and trailing commas",
    "ranks": "how many GPUs",
    "sequence": "tokens of a sequence",
    "micro-batch": "sequences of a micro-batch; else what DeepSpeed's configuration says, or 1",
    "checkpointing": "keep only each block's input, and compute the block again",
    "gpu-memory": "of a GPU, as 80GB or 80GiB",
    "outside-tensors": "of it that is not for tensors; else what was recorded, 2.27GB",
    "only-rank": "rehearse this one; else the first, the middle and the last",
    "figure": "a PNG file for the first rank's memory over the two steps",
}
NUMBERS, REQUIRED = (
    ("ranks", "sequence", "micro-batch", "only-rank"),
    ("model", "deepspeed", "ranks", "sequence"),
)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.tools.rehearsal",
        description="Rehearse a training with DeepSpeed: what a rank of any number of GPUs would hold and "
        "send, without GPUs and without memory.",
        epilog="Exit status: 0 where it fits (or no --gpu-memory was given), 1 where it does not, 2 "
        "where it could not be rehearsed.",
    )
    for name, words in OPTIONS.items():
        if name == "checkpointing":
            parser.add_argument(f"--{name}", action="store_true", help=words)
        else:
            kind = int if name in NUMBERS else str
            parser.add_argument(f"--{name}", type=kind, required=name in REQUIRED, help=words)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Answer; the exit status."""
    given = options().parse_args(words)
    try:
        return told(given)
    except (RehearsalError, TypeError, ValueError) as problem:
        print(f"cannot be rehearsed: {problem}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return FAILED


def told(given: argparse.Namespace) -> int:
    memory = question.size(given.gpu_memory) if given.gpu_memory else None
    outside = question.size(given.outside_tensors) if given.outside_tensors else answer.OUTSIDE
    for name in ("ranks", "sequence", "micro_batch"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise question.BadQuestion(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
    model = question.read_model(given.model)
    asked = question.ask(
        model, given.deepspeed, given.ranks, given.sequence, given.micro_batch, given.checkpointing
    )
    ranks = sorted({0, given.ranks // 2, given.ranks - 1}) if given.only_rank is None else [given.only_rank]
    preload(*question.libraries(asked.model))
    places = []
    reports = {rank: one_rank(asked, rank, bool(given.figure) and rank == ranks[0], places) for rank in ranks}
    first = reports[ranks[0]]
    print(
        f"{first['elements']:,} parameters in {asked.dtype}, ZeRO stage {asked.stage}, "
        f"{asked.ranks:,} ranks, {asked.micro_batch} x {asked.sequence:,} tokens, "
        f"accumulation {asked.accumulation}"
    )
    for note in (*asked.notes, *([asked_for(list(dict.fromkeys(places)))] if places else ())):
        print(f"note: {note}")
    print("\n".join(answer.table(asked, reports, outside)))
    seconds = sum(report["seconds"] for report in reports.values())
    real = max(report["real_bytes"] for report in reports.values())
    print(f"rehearsed in {seconds:.0f} s and {answer.gigabytes(real)} GB")
    verdict = answer.verdict(reports, memory, outside)
    print(verdict)
    if not verdict.fits:
        print(answer.advice(asked, reports, verdict))
    if given.figure:
        draw(first["history"], given.figure, f"rank {ranks[0]} of {asked.ranks:,}, rehearsed")
    return FITS if verdict.fits else DOES_NOT_FIT


def one_rank(asked: question.Question, rank: int, drawn: bool, places: list[Place]) -> dict:
    """Rehearse it, and say so meanwhile; the places that ask for a number are added to those."""
    with (
        tempfile.NamedTemporaryFile() as diary,
        shown(f"rehearsing rank {rank} of {asked.ranks:,} ...", diary.name),
    ):
        arguments = {"question": asked, "drawn": drawn, "diary": diary.name}
        return rehearse(two_steps, asked.ranks, rank, arguments, device="cuda", asked=places)


@contextlib.contextmanager
def shown(words: str, diary: str) -> Iterator[None]:
    """A line on stderr: what is rehearsed, and at the end the seconds; on a terminal also, twice a second,
    how far it has come."""
    started, done, stderr = time.monotonic(), threading.Event(), sys.stderr

    def say(more, end=""):
        print(f"{words} {time.monotonic() - started:.0f} s{more}", end=end, flush=True, file=stderr)

    def follow():
        while not done.wait(0.5):
            with open(diary) as written:
                stderr.write("\r")
                say(f"{written.read():<40}")
        stderr.write(f"\r{'':<110}\r")

    follower = threading.Thread(target=follow)
    with contextlib.ExitStack() as stack:
        if stderr.isatty():
            # where the launcher would say that one rank is at work
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            follower.start()
            stack.callback(follower.join)
        stack.callback(done.set)
        yield
    say("", end="\n")


if __name__ == "__main__":
    sys.exit(main())
