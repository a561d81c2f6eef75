"""`python -m helpers.tools.rehearsal`: will a training fit?  A few of its ranks are rehearsed, each in
seconds to minutes and a little memory."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from helpers.tools.launch.forked.forked_job import preload
from helpers.tools.rehearsal import answer, question
from helpers.tools.rehearsal.advising import advice
from helpers.tools.rehearsal.asked import told as asked_for
from helpers.tools.rehearsal.drawing import draw
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.gpu import GPUS, MEMORY
from helpers.tools.rehearsal.rehearsing import RehearsalError, rehearse
from helpers.tools.rehearsal.spread import most_different

FITS, DOES_NOT_FIT, FAILED = 0, 1, 2  # exit statuses


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


NEEDED, COUNT = {"required": True}, {"type": count}
OPTIONS = {  # name: how it is read, what it is
    "model": (NEEDED, "a configuration of transformers (a file, or a folder with config.json), or a GPTSize"),
    "deepspeed": (NEEDED, "DeepSpeed's configuration, JSON with comments and trailing commas"),
    "ranks": (NEEDED | COUNT, "how many GPUs"),
    "sequence": (NEEDED | COUNT, "tokens of a sequence"),
    "micro-batch": (COUNT, "sequences of a micro-batch; else what DeepSpeed's configuration says, or 1"),
    "checkpointing": ({"action": "store_true"}, "keep only each block's input, and compute the block again"),
    "gpu-memory": ({}, "of a GPU, as 80GB or 80GiB"),
    "gpus-per-host": (COUNT | {"default": GPUS}, "GPUs of a machine, 8 where nothing is said"),
    "outside-tensors": ({}, "of it that is not for tensors; else what was recorded, 2.27GB"),
    "only-rank": ({"type": int}, "rehearse this one; else the first, and those that hold most and least"),
    "figure": ({}, "a PNG file for the first rank's memory over the two steps"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Answer; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.tools.rehearsal",
        description="Rehearse a training with DeepSpeed: what a rank of any number of GPUs would hold and "
        "send, without GPUs and without memory.",
        epilog="Exit status: 0 where it fits (or no --gpu-memory was given), 1 where it does not, 2 "
        "where it could not be rehearsed.",
    )
    for name, (reading, help) in OPTIONS.items():
        parser.add_argument(f"--{name}", help=help, **reading)
    options = parser.parse_args(words)
    try:
        return told(options)
    except (RehearsalError, TypeError, ValueError) as problem:
        print(f"cannot be rehearsed: {problem}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return FAILED


def told(options: argparse.Namespace) -> int:
    memory = question.size(options.gpu_memory) if options.gpu_memory else None
    outside = question.size(options.outside_tensors) if options.outside_tensors else answer.OUTSIDE
    logging.getLogger("transformers").setLevel(logging.ERROR)
    sizes = (options.ranks, options.sequence, options.micro_batch)
    asked = question.ask(question.read_model(options.model), options.deepspeed, *sizes, options.checkpointing)
    preload(f"transformers.{asked.architecture}")
    machine = {"capacity": max((memory or MEMORY) - outside, 1), "gpus_per_host": options.gpus_per_host}
    places = []

    def rehearsed(changed, rank, drawn=False, words=""):
        words = f"rehearsing rank {rank} of {changed.ranks:,}{words} ..."
        with tempfile.NamedTemporaryFile() as diary, shown(words, Path(diary.name)):
            arguments = {"question": changed, "drawn": drawn, "diary": diary.name}
            return rehearse(two_steps, changed.ranks, rank, arguments, device="cuda", asked=places, **machine)

    one = options.only_rank or 0
    first = rehearsed(asked, one, drawn=bool(options.figure))
    reports = {one: first}
    if options.only_rank is None:
        in_turn = asked.config.get("zero_optimization", {}).get("round_robin_gradients", False)
        for rank in most_different(first["sizes"], asked.stage, asked.ranks, in_turn)[1:]:
            reports[rank] = rehearsed(asked, rank)
    print(header(asked, first["elements"]))
    notes = list(asked.notes)
    if asked.stage in (1, 2) and not memory:
        notes.append(f"DeepSpeed, which asks what is free, is told of a GPU of {answer.gigabytes(MEMORY)} GB")
    if places:
        notes.append(asked_for(list(dict.fromkeys(places))))
    print("\n".join([*(f"note: {note}" for note in notes), *answer.table(asked, reports, outside)]))
    seconds = sum(report["seconds"] for report in reports.values())
    real = max(report["real_bytes"] for report in reports.values())
    print(f"rehearsed in {seconds:.0f} s and {answer.gigabytes(real)} GB")
    verdict = answer.verdict(reports, memory, outside)
    print(verdict, flush=True)
    if options.figure:
        draw(first["history"], options.figure, f"rank {one} of {asked.ranks:,}, rehearsed")
    if not verdict.fits:
        print(advice(asked, reports, verdict, outside, partial(rehearsed, words=", changed")))
    return FITS if verdict.fits else DOES_NOT_FIT


def header(asked: question.Question, elements: int) -> str:
    words = (
        f"{elements:,} parameters in {asked.dtype}, ZeRO stage {asked.stage}, {asked.ranks:,} ranks, "
        f"{asked.micro_batch} x {asked.sequence:,} tokens, accumulation {asked.accumulation}"
    )
    return words + (f" (assumed: {', '.join(asked.assumed)})" if asked.assumed else "")


@contextlib.contextmanager
def shown(words: str, diary: Path) -> Iterator[None]:
    """A line on stderr: what is rehearsed, and at the end the seconds; on a terminal also, twice a second,
    how far it has come."""
    started, done, stderr = time.monotonic(), threading.Event(), sys.stderr

    def say(more, start="", end=""):
        print(f"{start}{words} {time.monotonic() - started:.0f} s{more}", end=end, flush=True, file=stderr)

    def follow():
        while not done.wait(0.5):
            say(f"{diary.read_text():<40}", start="\r")
        stderr.write(f"\r{'':<110}\r")

    follower = threading.Thread(target=follow if stderr.isatty() else done.wait)
    follower.start()
    try:
        # The launcher would say on a terminal that one rank is at work.
        with contextlib.redirect_stderr(io.StringIO()) if stderr.isatty() else contextlib.nullcontext():
            yield
    finally:
        done.set()
        follower.join()
    say("", end="\n")


if __name__ == "__main__":
    sys.exit(main())
