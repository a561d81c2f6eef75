"""Rehearse the plans: `python -m helpers.course.job.rehearsals [plan ...]`, by default all of them.

Writes a JSON file for each plan into recorded/job/: what was rehearsed with which versions, and what the
fullest rank holds, sends and takes.  Seconds to a minute for each plan.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version

from helpers.course.job import pipeline
from helpers.course.job.plans import PLANS, Plan, plan
from helpers.course.job.reference import CARD, MEMORY, SEQUENCE
from helpers.course.job.stored import FOLDER, path
from helpers.paths import replace
from helpers.tools.forecast.verdict import Verdict
from helpers.tools.launcher.forked.forkservers import preload
from helpers.tools.rehearsal.cards import card
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.refusing import BadQuestion
from helpers.tools.rehearsal.rehearsing import rehearse
from helpers.tools.rehearsal.reserving import OUTSIDE
from helpers.tools.rehearsal.seconds import Seconds, computing, seconds
from helpers.tools.theory.known_machines import MACHINES

LIBRARIES = ("torch", "deepspeed", "transformers")


def installed() -> dict[str, str]:
    """{library: its version here}, without what a build adds, as "+cpu"."""
    return {name: version(name).partition("+")[0] for name in LIBRARIES}


def of_plan(wanted: Plan) -> dict:
    """What is stored of a plan: the rank that needs most of the first one and those that hold most and
    least."""
    asked = wanted.question()
    preload(f"transformers.{asked.architecture}", *(["peft"] if asked.adaptation.rank else []))
    memory = int(MEMORY) if wanted.card == CARD else card(wanted.card).memory
    given = {"arguments": {"question": asked}, "device": "cuda", "asked": [], "capacity": memory - OUTSIDE}
    if wanted.stages:
        given["arguments"] = {"blocks": wanted.stages, "config": wanted.config}
    one = partial(rehearse, pipeline.two_steps if wanted.stages else two_steps, wanted.gpus, **given)
    reports = {0: one(rank=0)}
    if wanted.stages:
        others = [1, wanted.gpus - 1]  # all between the ends are alike, and the first of them holds most
    else:
        others = asked.axes.most_different(reports[0], asked.stage)[1:]
    reports |= {rank: one(rank=rank) for rank in others}
    verdict = Verdict.of(reports, memory)
    report = reports[verdict.rank]
    try:
        time_of_step = of_passes(reports) if wanted.stages else told(seconds(asked, report, wanted.card))
    except BadQuestion as refused:
        time_of_step = {"unknown": str(refused)}
    return {
        **{"model": wanted.model, "config": wanted.config, "gpus": wanted.gpus, "card": wanted.card},
        **{"sequence": SEQUENCE, "sequences": wanted.sequences, "checkpointing": wanted.checkpointing},
        **{"lora": wanted.lora, "qlora": wanted.qlora, "memory": memory, "rank": verdict.rank},
        **held(report, verdict.reserved),
        **({"stages": wanted.stages} if wanted.stages else {}),
        **{"host": report.get("host", {}), "sent": report["sent"], "seconds": time_of_step},
    }


def held(report: dict, found: object) -> dict:
    """What a rank's GPU holds, all in bytes."""
    return {
        **{"elements": report["elements"], "states": report["states"], "moments": report["parts"]},
        **{"allocated": found.allocated, "reserved": [found.least, found.most], "how": found.how},
        "outside": OUTSIDE,
    }


def of_passes(reports: Mapping[int, dict]) -> dict:
    """Seconds of one pass of a micro-batch on some stages of a pipeline; of a whole step none, since they
    depend on the order."""
    machine = MACHINES[CARD]
    each = {
        str(rank): {
            name: sum(computing(counts, machine).values()) for name, counts in report["passes"].items()
        }
        for rank, report in reports.items()
    }
    return {"unknown": "a pipeline's depend on the order of its passes", "passes_of": each}


def told(found: Seconds) -> dict:
    """Seconds of a step by part, at the fastest and the slowest, and what `stored.step_times` needs more."""
    both = (found.fastest, found.slowest)
    return {
        "fastest": found.fastest.parts,
        "slowest": found.slowest.parts,
        "passes": [{place: asdict(time) for place, time in one.passes.items()} for one in both],
        "hidden": [one.hidden for one in both],
        "host": [one.host for one in both],
        "operators": found.fastest.operators,
        "constants": found.constants,
    }


def made(name: str) -> dict:
    """What is stored of a plan by its name."""
    return {"plan": name, "label": "rehearsed", "versions": installed(), **of_plan(plan(name))}


def main(names: Sequence[str]) -> None:
    for name in names or PLANS:
        started = time.monotonic()
        replace(path(name), json.dumps(made(name), indent=1) + "\n")
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    for file in set(FOLDER.glob("*.json")) - set(map(path, PLANS)):
        file.unlink()
        print(f"{file.name}: no plan any more")


if __name__ == "__main__":
    main(sys.argv[1:])
