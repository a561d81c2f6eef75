"""Record the lessons' experiments at real sizes: `python -m helpers.course.recording.record [experiment ...]
[--out FOLDER]`.

Writes one JSON file per experiment and machine, after every run: what was run (configuration, shapes,
command, commit), on what (hardware, versions), and the raw numbers of every rank.  Nothing derived is stored.
 A run that is recorded again replaces the one before.
Lessons that are opened from `work/` prefer the files in `work/recorded/`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from helpers.course import models
from helpers.course.recording.experiment import MODELS, RANKS, SIZES, STAGES
from helpers.course.recording.table import EXPERIMENTS, NAMED
from helpers.paths import ROOT, WORK, replace
from helpers.tools.launcher.failures import LaunchError, RankError
from helpers.tools.launcher.forked.forkservers import preload
from helpers.tools.launcher.jobs import launch
from helpers.tools.launcher.resources import gpu_count

TIMEOUT = 280  # seconds of one run


def shapes(size: models.GPTSize) -> list[list[int]]:
    """Every parameter's shape, in the model's order."""
    with torch.device("meta"):
        return [list(parameter.shape) for parameter in models.GPT(size).parameters()]


def machine() -> dict:
    """Hardware and versions, as a rank sees them."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    on_gpu = get_accelerator().device_name() == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else f"CPU, {os.cpu_count()} cores"
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else None
    python = sys.version.split()[0]
    versions = {"python": python, "torch": torch.__version__, "deepspeed": deepspeed.__version__}
    if on_gpu:
        versions |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    cores = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}  # threads of a rank
    return {"device": name, "device_memory": memory, "versions": versions, **cores}


def commit() -> str:
    """The course's commit, with a + where files differ from it; `COURSE_COMMIT` where they came without their
    history."""
    if given := os.environ.get("COURSE_COMMIT"):
        return given

    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()

    differs = "+" if git("status", "--porcelain", "--", "helpers") else ""
    return git("rev-parse", "HEAD") + differs or "unknown"


def asked_for(words: Sequence[str]) -> list[str]:
    """A command's words without the folder of its files, which is of this machine."""
    return [word for before, word in zip(["", *words], words) if "--out" not in (before, word)]


def run(name: str, ranks: int, arguments: dict, device: str) -> dict:
    """One run: the configuration it used, and its reports, or why there are none."""
    function, config = EXPERIMENTS[name].function, EXPERIMENTS[name].configuration(ranks, **arguments)
    noted = {"ranks": ranks, "arguments": arguments, "configuration": config}
    if (prediction := EXPERIMENTS[name].prediction(ranks, **arguments)) is not None:
        noted["predicted"] = prediction  # before the run
    started = time.monotonic()
    # The folder is gone afterwards, whatever the ranks do.
    with tempfile.TemporaryDirectory(prefix="recording-", ignore_cleanup_errors=True) as scratch:
        values = {**arguments, "config": config, "scratch": scratch}
        values |= {of: NAMED[of][value] for of, value in arguments.items() if of in NAMED}
        values = {of: values[of] for of in inspect.signature(function).parameters if of in values}
        try:
            reports = launch(function, ranks=ranks, arguments=values, device=device, timeout=TIMEOUT)
            noted["reports"] = list(reports)
        except (LaunchError, MemoryError, RankError) as error:
            noted["error"] = str(error).replace(scratch, "scratch")
    said = noted.get("error", "recorded").splitlines()[0]
    print(f"{name}, {ranks} ranks, {arguments}: {said}, {time.monotonic() - started:.0f} s", flush=True)
    return noted


def planned(
    name: str,
    sizes: Sequence[str],
    counts: Sequence[int],
    device: str,
    stages: Sequence[int],
    only: Mapping[str, str] = {},
) -> list[tuple[int, dict]]:
    """The runs of an experiment on this machine: [(ranks, arguments)], none where there is nothing to run.

    Args:
        only: values, as text, of some arguments.
    """
    experiment = EXPERIMENTS[name]
    if experiment.needs_gpu if device == "cpu" else experiment.needs_cpu:
        return []
    if device == "cuda":
        most = RANKS[-1] if experiment.may_share and gpu_count() else gpu_count()
        counts = [ranks for ranks in counts if ranks <= most]

    def wanted(size="", shape="", text="", stage=None, **others):
        model = size or shape or text
        if model == "6.2B":
            return "tiny" not in sizes
        return (not model or model.split(",")[0] in sizes) and (stage is None or stage in stages)

    runs = [(ranks, arguments) for ranks, arguments in experiment.runs if ranks in counts]
    runs = [run for run in runs if experiment.needs_cpu or wanted(**run[1])]
    return [run for run in runs if all(str(run[1].get(name)) == value for name, value in only.items())]


def record(
    name: str,
    sizes: Sequence[str],
    counts: Sequence[int],
    device: str,
    folder: Path,
    stages: Sequence[int] = STAGES,
    keep: bool = False,
    only: Mapping[str, str] = {},
) -> Path | None:
    """Run an experiment and write its file after every run, without those that the file has where `keep` is
    set; returns the path, or None where there is nothing to run, which it says."""
    experiment, todo = EXPERIMENTS[name], planned(name, sizes, counts, device, stages, only)
    if not todo:
        where = f"{device} ({gpu_count()} GPUs)" if device == "cuda" else device
        ranks = ", ".join(map(str, counts)) or "no"
        print(f"{name}: nothing to run with {ranks} ranks, sizes {', '.join(sizes) or 'none'}, on {where}")
        return None
    if reason := experiment.missing():
        print(f"{name}: {reason}")
        return None
    if experiment.libraries:
        preload(*experiment.libraries)
    about = {"gpus": gpu_count() if device != "cpu" else 0, **launch(machine, ranks=1, device=device)[0]}
    path = folder / f"{name}-{about['gpus']}-{re.sub('[^A-Za-z0-9.]+', '-', about['device'])}.json"
    content = {"experiment": name, "sizes": {}, "shapes": {}, "runs": []}
    if path.exists():
        content = json.loads(path.read_text())
    known = [(run["ranks"], run["arguments"]) for run in content["runs"]] if keep else []
    for ranks, arguments in [run for run in todo if run not in known]:
        if size := arguments.get("size"):
            content["sizes"][size], content["shapes"][size] = asdict(SIZES[size]), shapes(SIZES[size])
        done = run(name, ranks, arguments, device) | {
            "on": about,
            "command": " ".join(["python -m helpers.course.recording.record", *asked_for(sys.argv[1:])]),
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if "error" in done and 0 < about["gpus"] < ranks:
            continue  # says nothing of ranks with a GPU of their own
        others = [run for run in content["runs"] if (run["ranks"], run["arguments"]) != (ranks, arguments)]
        content["runs"] = [*others, done]
        replace(path, json.dumps(content, separators=(",", ":")) + "\n")
    return path if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.course.recording.record",
        description="Record the lessons' experiments at real sizes.  Experiments are named first, options "
        "after them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    sharing = " and ".join(name for name, experiment in EXPERIMENTS.items() if experiment.may_share)
    numbers = {"nargs": "+", "type": int}
    add = parser.add_argument
    add("experiments", nargs="*", metavar="experiment", default=list(EXPERIMENTS), help="which to run")
    add("--out", type=Path, default=WORK / "recorded", help="folder of the JSON files")
    add("--sizes", nargs="+", choices=MODELS, default=["1.5B", "7.5B"], help="parameters of the models")
    add("--ranks", **numbers, choices=RANKS, default=[1, 2, 4, 8], help="as many as there are GPUs for")
    add("--stages", **numbers, choices=STAGES, default=STAGES, help="of the experiments zero and speed")
    share = f"{sharing}: more ranks than GPUs too, which share them; without times"
    add("--share", action="store_true", help=share)
    keep = "do not run again what the files have, for instance of an interrupted recording"
    add("--keep", action="store_true", help=keep)
    devices = "cpu: to try the recorder; and for nvme, qlora and autotuning"
    add("--device", choices=("cuda", "cpu"), default="cuda", help=devices)
    only = "runs with these values of their arguments alone, as link=sockets"
    add("--only", nargs="+", default=[], metavar="NAME=VALUE", help=only)
    options = parser.parse_args()
    if unknown := set(options.experiments) - set(EXPERIMENTS):
        parser.error(f"{', '.join(sorted(unknown))}: experiments are {', '.join(EXPERIMENTS)}")
    gpus = gpu_count()
    most = RANKS[-1] if options.device == "cpu" or (options.share and gpus) else gpus
    counts = [ranks for ranks in options.ranks if ranks <= most]
    if not counts:
        parser.error(
            f"{' or '.join(map(str, options.ranks))} ranks need a GPU each, and there are {gpus} here: "
            "`zero --device cpu --sizes tiny` records a small model without"
        )
    asked = (options.sizes, counts, options.device, options.out, options.stages, options.keep)
    only = dict(text.split("=", 1) for text in options.only)
    paths = [path for name in options.experiments if (path := record(name, *asked, only))]
    if not paths:
        sys.exit("nothing was recorded")
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
