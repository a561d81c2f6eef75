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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from helpers.tools.launch.forked.forked_job import preload
from helpers.tools.rehearsal import answer, question
from helpers.tools.rehearsal.asked import told as asked_for
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.rehearsing import RehearsalError, rehearse

if TYPE_CHECKING:
    from helpers.tools.measure.ledger import History
    from helpers.tools.rehearsal.asked import Place

FITS, DOES_NOT_FIT, FAILED = 0, 1, 2  # exit statuses


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.tools.rehearsal",
        description="Rehearse a training with DeepSpeed: what a rank of any number of GPUs would hold and "
        "send, without GPUs and without memory.",
        epilog="Exit status: 0 where it fits (or no --gpu-memory was given), 1 where it does not, 2 "
        "where it could not be rehearsed.",
    )
    parser.add_argument(
        "--model",
        required=True,
        help="a configuration of transformers (a file, or a folder with config.json), or a GPTSize as JSON",
    )
    parser.add_argument("--deepspeed", required=True, help="DeepSpeed's configuration, JSON")
    parser.add_argument("--ranks", required=True, type=int, help="how many GPUs")
    parser.add_argument("--sequence", required=True, type=int, help="tokens of a sequence")
    parser.add_argument(
        "--micro-batch",
        type=int,
        help="sequences of a micro-batch; else what DeepSpeed's configuration says, or 1",
    )
    parser.add_argument(
        "--checkpointing",
        action="store_true",
        help="keep only each block's input, and compute the block again",
    )
    parser.add_argument("--gpu-memory", help="of a GPU, as 80GB or 80GiB")
    parser.add_argument(
        "--outside-tensors",
        default=f"{answer.OUTSIDE}",
        help="of it that is not for tensors; else what was recorded, 2.27GB",
    )
    parser.add_argument(
        "--only-rank", type=int, help="rehearse this one; else the first, the middle and the last"
    )
    parser.add_argument("--figure", help="a PNG file for the first rank's memory over the two steps")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Answer; the exit status."""
    given = options().parse_args(words)
    try:
        return told(given)
    except (question.BadQuestion, RehearsalError, TypeError, ValueError) as problem:
        print(f"cannot be rehearsed: {problem}", file=sys.stderr)
        return FAILED


def told(given: argparse.Namespace) -> int:
    memory = question.size(given.gpu_memory) if given.gpu_memory else None
    outside = question.size(given.outside_tensors)
    for name in ("ranks", "sequence"):
        if getattr(given, name) < 1:
            raise question.BadQuestion(f"--{name} must be 1 or more, not {getattr(given, name)}")
    model, config = question.read(given.model), question.read(given.deepspeed)
    asked = question.ask(model, config, given.ranks, given.sequence, given.micro_batch, given.checkpointing)
    ranks = sorted({0, given.ranks // 2, given.ranks - 1}) if given.only_rank is None else [given.only_rank]
    preload(*question.libraries(model))
    places = []
    reports = {rank: one_rank(asked, rank, bool(given.figure) and rank == ranks[0], places) for rank in ranks}
    first = reports[ranks[0]]
    print(
        f"{first['elements']:,} parameters, ZeRO stage {asked.stage}, {asked.ranks:,} ranks, "
        f"{asked.micro_batch} x {asked.sequence:,} tokens"
    )
    for note in (*asked.notes, *([asked_for(list(dict.fromkeys(places)))] if places else ())):
        print(f"note: {note}")
    print("\n".join(answer.table(asked, reports, outside)))
    seconds, real = (
        sum(report["seconds"] for report in reports.values()),
        max(report["real_bytes"] for report in reports.values()),
    )
    print(f"rehearsed in {seconds:.0f} s and {answer.gigabytes(real)} GB")
    found = answer.verdict(reports, memory, outside)
    print(found)
    if not found.fits:
        print(answer.advice(asked, reports, found))
    if given.figure:
        draw(first["history"], given.figure, f"rank {ranks[0]} of {asked.ranks:,}, rehearsed")
    return FITS if found.fits else DOES_NOT_FIT


def one_rank(asked: question.Question, rank: int, drawn: bool, places: list[Place]) -> dict:
    """Rehearse it, and say so meanwhile; the places that ask for a number are added to those."""
    with (
        tempfile.NamedTemporaryFile() as diary,
        shown(f"rehearsing rank {rank} of {asked.ranks:,} ...", diary.name),
    ):
        return rehearse(
            two_steps,
            asked.ranks,
            rank,
            {"question": asked, "drawn": drawn, "diary": diary.name},
            device="cuda",
            asked=places,
        )


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
            stack.enter_context(
                contextlib.redirect_stderr(io.StringIO())
            )  # where the launcher would say that one rank is at work
            follower.start()
            stack.callback(follower.join)
        stack.callback(done.set)
        yield
    say("", end="\n")


def draw(history: History, file: str, title: str) -> None:
    from helpers.course import plots

    with open(file, "wb") as opened:
        opened.write(plots.memory_over_time(history, title).png)


if __name__ == "__main__":
    sys.exit(main())
