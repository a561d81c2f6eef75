"""The command's answer: a few ranks are rehearsed, each in seconds to minutes and a little memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TextIO

from ..launcher.forked.forkservers import preload
from . import adaptations, adapting, question
from .advising import advice
from .answer import Answer
from .asked import told as asked_for
from .cards import card
from .drawing import draw
from .extras import need
from .fitting import two_steps
from .gpu import MEMORY
from .host import Host
from .of_files import said
from .pace import Pace, Wanted
from .rehearsing import rehearse
from .reserving import OUTSIDE
from .units import gigabytes, size
from .verdict import verdict as judged

FITS, DOES_NOT_FIT = 0, 1  # exit statuses


def told(options: argparse.Namespace, stdout: TextIO) -> int:
    """Rehearse what was asked, print the answer to `stdout`; the exit status."""
    if options.figure:
        need("matplotlib", "--figure")
    memory, outside, host_memory = sizes(options)
    timed = Wanted.of(options)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    wanted = adaptations.read(options.lora, options.qlora, options.frozen)
    model = question.read_model(options.model)
    files = said(options, model)
    numbers = (files.ranks, files.sequence, files.micro_batch)
    asked = question.ask(model, files.config, *numbers, files.checkpointing, wanted)
    timed.check(asked)
    preload(f"transformers.{asked.architecture}", *(["peft"] if wanted.rank else []))
    machine = {"capacity": max((memory or MEMORY) - outside, 1), "gpus_per_host": files.gpus_per_host}
    places = []
    rehearsed = partial(one_rank, machine=machine, places=places)
    reports = few_ranks(asked, options.only_rank, bool(options.figure), rehearsed)
    notes = [*files.notes, *asked.notes]
    if asked.stage in (1, 2) and not memory:
        notes.append(f"DeepSpeed, which asks what is free, is told of a GPU of {gigabytes(MEMORY)} GB")
    if places:
        notes.append(asked_for(list(dict.fromkeys(places))))
    verdict = judged(reports, memory, outside)

    def host_of(question, reports):
        return Host.of(reports, min(question.ranks, files.gpus_per_host), host_memory)

    def suffices(changed, report):
        return host_of(changed, {0: report}).fits

    host = host_of(asked, reports)
    if options.figure:
        drawn = next(iter(reports))
        draw(reports[drawn], options.figure, f"rank {drawn} of {asked.ranks:,}, rehearsed")
    pace = Pace.of(asked, reports, timed, files.gpus_per_host)
    whole = Answer(asked, header(asked, reports), notes, reports, verdict, host, pace)
    if not options.json:
        print("\n".join(whole.lines()), flush=True, file=stdout)
    advised = ""
    if not verdict.fits:
        advised = advice(asked, reports, verdict, outside, partial(rehearsed, words=", changed"), suffices)
    if options.json:
        print(json.dumps(whole.as_data() | {"advice": advised}, indent=1), file=stdout)
    elif advised:
        print(advised, file=stdout)
    return FITS if verdict.fits and host.fits else DOES_NOT_FIT


def sizes(options: argparse.Namespace) -> tuple[int | None, int, int | None]:
    """Bytes of a GPU, of it those outside torch's allocator, and bytes of a machine's own memory."""
    if options.gpu and options.gpu_memory:
        raise question.BadQuestion("--gpu and --gpu-memory say the same in two ways: give one of them")
    memory = card(options.gpu).memory if options.gpu else None
    memory = size(options.gpu_memory) if options.gpu_memory else memory
    outside = size(options.outside_tensors) if options.outside_tensors else OUTSIDE
    return memory, outside, size(options.host_memory) if options.host_memory else None


def few_ranks(
    asked: question.Question, only: int | None, drawn: bool, rehearsed: partial
) -> dict[int, Mapping]:
    """{rank: report} of one rank, or of the first and those that hold most and least."""
    one = only or 0
    reports = {one: rehearsed(asked, one, drawn=drawn)}
    if only is None:
        in_turn = asked.config.get("zero_optimization", {}).get("round_robin_gradients", False)
        for rank in asked.axes.most_different(reports[one], asked.stage, in_turn)[1:]:
            reports[rank] = rehearsed(asked, rank)
    return reports


def one_rank(
    asked: question.Question, rank: int, drawn: bool = False, words: str = "", *, machine: dict, places: list
) -> Mapping:
    """The report of a rank, and a line that says what was rehearsed."""
    arguments = {"question": asked, "drawn": drawn}
    with timed(f"rehearsing rank {rank} of {asked.ranks:,}{words} ..."):
        return rehearse(two_steps, asked.ranks, rank, arguments, device="cuda", asked=places, **machine)


def header(asked: question.Question, reports: Mapping[int, Mapping]) -> str:
    """In one line what was rehearsed; the parameters' type is the model's own where DeepSpeed's configuration
    names none."""
    kinds, dtype = (next(iter(reports.values()))[name] for name in ("kinds", "dtype"))
    words = (
        f"{adapting.described(kinds)}ZeRO stage {asked.stage}, {asked.axes}, "
        f"{asked.micro_batch} x {asked.sequence:,} tokens, accumulation {asked.accumulation}"
    )
    assumed = ", ".join(asked.assumed).replace("precision", dtype)
    return f"{words} (assumed: {assumed})" if assumed else words


@contextlib.contextmanager
def timed(words: str) -> Iterator[None]:
    """A line on stderr at the end: what was rehearsed, and its seconds.  Until then the launcher says on a
    terminal how far it has come."""
    started = time.monotonic()
    yield
    print(f"{words} {time.monotonic() - started:.0f} s", flush=True, file=sys.stderr)
