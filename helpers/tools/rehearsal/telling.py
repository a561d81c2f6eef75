"""The command's answer: a few ranks are rehearsed, each in seconds to minutes and a little memory."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ..launch.forked.forkservers import preload
from . import answer, question
from .advising import advice
from .asked import told as asked_for
from .cards import card
from .drawing import draw
from .fitting import two_steps
from .gpu import MEMORY
from .rehearsing import rehearse
from .reserving import smallest_gpu

FITS, DOES_NOT_FIT = 0, 1  # exit statuses


def told(options: argparse.Namespace) -> int:
    """Rehearse what was asked, print the answer; the exit status."""
    if options.gpu and options.gpu_memory:
        raise question.BadQuestion("--gpu and --gpu-memory say the same in two ways: give one of them")
    memory = card(options.gpu).memory if options.gpu else None
    memory = question.size(options.gpu_memory) if options.gpu_memory else memory
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
        for rank in asked.axes.most_different(first["sizes"], first["whole"], asked.stage, in_turn)[1:]:
            reports[rank] = rehearsed(asked, rank)
    print(header(asked, first["elements"], first["dtype"]))
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
    if not verdict.fits or not memory:
        requests = reports[verdict.rank]["requests"]
        smallest, grown = (smallest_gpu(requests, outside, way) for way in (False, True))
        ways = f"{answer.gigabytes(smallest)} GB, with expandable segments {answer.gigabytes(grown)} GB"
        print(f"the smallest GPU on which rank {verdict.rank} runs: {ways}")
    if not verdict.fits:
        print(advice(asked, reports, verdict, outside, partial(rehearsed, words=", changed")))
    return FITS if verdict.fits else DOES_NOT_FIT


def header(asked: question.Question, elements: int, dtype: str) -> str:
    """In one line what was rehearsed; the parameters' type is the model's own where DeepSpeed's configuration
    names none."""
    words = (
        f"{elements:,} parameters in {dtype}, ZeRO stage {asked.stage}, {asked.axes}, "
        f"{asked.micro_batch} x {asked.sequence:,} tokens, accumulation {asked.accumulation}"
    )
    assumed = ", ".join(asked.assumed).replace("precision", dtype)
    return f"{words} (assumed: {assumed})" if assumed else words


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
