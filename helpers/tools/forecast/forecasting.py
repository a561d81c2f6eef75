"""A forecast: a few ranks are rehearsed, each in seconds to minutes and a little memory, and the answer is
printed."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TextIO

from ..launcher.forked.forkservers import preload
from ..rehearsal import adapting, asked
from ..rehearsal.extras import need
from ..rehearsal.fitting import two_steps
from ..rehearsal.gpu import MEMORY
from ..rehearsal.question import Question, ask, read_model
from ..rehearsal.rehearsing import rehearse
from . import of_files
from .advising import advice
from .answer import Answer
from .drawing import draw
from .host import Host
from .options import Options
from .pace import Pace
from .units import gigabytes
from .verdict import Verdict

FITS, DOES_NOT_FIT = 0, 1  # exit statuses


def forecast(options: Options, stdout: TextIO) -> int:
    """Rehearse what the options ask, print the answer to `stdout`; the exit status."""
    if options.figure:
        need("matplotlib", "--figure")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model, memory, outside = read_model(options.model), options.memory, options.outside
    training = of_files.read(options, model)
    numbers = (training.ranks, training.sequence, training.micro_batch)
    question = ask(model, training.config, *numbers, training.checkpointing, options.adaptation)
    options.terms.check(question)
    preload(f"transformers.{question.architecture}", *(["peft"] if options.adaptation.rank else []))
    machine = {"capacity": max((memory or MEMORY) - outside, 1), "gpus_per_host": training.gpus_per_host}
    places = []
    report_of = partial(one_rank, machine=machine, places=places)
    reports = few_ranks(question, options.only_rank, bool(options.figure), report_of)
    notes = [*training.notes, *question.notes]
    if question.stage in (1, 2) and not memory:
        notes.append(f"DeepSpeed, which asks what is free, is told of a GPU of {gigabytes(MEMORY)} GB")
    if places:
        notes.append(asked.told(list(dict.fromkeys(places))))

    def host_of(question, reports):
        return Host.of(reports, min(question.ranks, training.gpus_per_host), options.host_memory)

    def suffices(changed, report):
        return host_of(changed, {0: report}).fits

    verdict, host = Verdict.of(reports, memory, outside), host_of(question, reports)
    if options.figure:
        first = next(iter(reports))
        draw(reports[first], options.figure, f"rank {first} of {question.ranks:,}, rehearsed")
    pace = Pace.of(question, reports, options.terms, training.gpus_per_host)
    answer = Answer(question, header(question, reports), notes, reports, verdict, host, pace)
    if not options.json:
        print("\n".join(answer.lines()), flush=True, file=stdout)
    change = ""
    if not verdict.fits:
        change = advice(question, reports, verdict, partial(report_of, words=", changed"), suffices)
    if options.json:
        print(json.dumps(answer.as_data() | {"advice": change}, indent=1), file=stdout)
    elif change:
        print(change, file=stdout)
    return FITS if verdict.fits and host.fits else DOES_NOT_FIT


def few_ranks(
    question: Question, only: int | None, drawn: bool, report_of: Callable[..., Mapping]
) -> dict[int, Mapping]:
    """{rank: report} of one rank, or of the first and those that hold most and least."""
    one = only or 0
    reports = {one: report_of(question, one, drawn=drawn)}
    if only is None:
        in_turn = question.config.get("zero_optimization", {}).get("round_robin_gradients", False)
        for rank in question.axes.most_different(reports[one], question.stage, in_turn)[1:]:
            reports[rank] = report_of(question, rank)
    return reports


def one_rank(
    question: Question, rank: int, drawn: bool = False, words: str = "", *, machine: dict, places: list
) -> Mapping:
    """The report of a rank, and a line that says what was rehearsed."""
    arguments = {"question": question, "drawn": drawn}
    with timed(f"rehearsing rank {rank} of {question.ranks:,}{words} ..."):
        return rehearse(two_steps, question.ranks, rank, arguments, device="cuda", asked=places, **machine)


def header(question: Question, reports: Mapping[int, Mapping]) -> str:
    """In one line what was rehearsed; the parameters' type is the model's own where DeepSpeed's configuration
    names none."""
    kinds, dtype = (next(iter(reports.values()))[name] for name in ("kinds", "dtype"))
    words = (
        f"{adapting.described(kinds)}ZeRO stage {question.stage}, {question.axes}, {question.micro_batch} x "
        f"{question.sequence:,} tokens, accumulation {question.accumulation}"
    )
    assumed = ", ".join(question.assumed).replace("precision", dtype)
    return f"{words} (assumed: {assumed})" if assumed else words


@contextlib.contextmanager
def timed(words: str) -> Iterator[None]:
    """A line on stderr at the end: what was rehearsed, and its seconds.  Until then the launcher says on a
    terminal how far it has come."""
    started = time.monotonic()
    yield
    print(f"{words} {time.monotonic() - started:.0f} s", flush=True, file=sys.stderr)
