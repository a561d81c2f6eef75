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
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from helpers.course import models
from helpers.course.recording.table import EXPERIMENTS, NAMED, SIZES, experiment
from helpers.paths import ROOT, WORK
from helpers.tools.launch.failures import LaunchError, RankError
from helpers.tools.launch.forked.forked_job import preload
from helpers.tools.launch.jobs import launch
from helpers.tools.launch.resources import gpu_count

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
    versions = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
    }
    if on_gpu:
        versions |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return {"device": name, "device_memory": memory, "versions": versions}


def commit() -> str:
    """The course's commit, with a + where files differ from it; `COURSE_COMMIT` where they came without their
    history."""
    if given := os.environ.get("COURSE_COMMIT"):
        return given

    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()

    return (
        git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "helpers") else "") or "unknown"
    )


def run(name: str, ranks: int, arguments: dict, device: str) -> dict:
    """One run: the configuration it used, and its reports, or why there are none."""
    function, config = experiment(name).function, experiment(name).configuration(ranks, **arguments)
    known = (
        arguments
        | {"config": config}
        | {parameter: NAMED[parameter][arguments[parameter]] for parameter in NAMED.keys() & arguments.keys()}
    )
    noted = {"ranks": ranks, "arguments": arguments, "configuration": config}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="recording-", ignore_cleanup_errors=True
    ) as scratch:  # is gone afterwards, whatever the ranks do
        given = {
            parameter: (known | {"scratch": scratch})[parameter]
            for parameter in inspect.signature(function).parameters
        }
        try:
            noted["reports"] = list(
                launch(function, ranks=ranks, arguments=given, device=device, timeout=TIMEOUT)
            )
        except (LaunchError, MemoryError, RankError) as error:
            noted["error"] = str(error).replace(scratch, "scratch")
    said = noted.get("error", "recorded").splitlines()[0]
    print(f"{name}, {ranks} ranks, {arguments}: {said}, {time.monotonic() - started:.0f} s", flush=True)
    return noted


def write(path: Path, content: dict) -> None:
    """The whole file or none of it, also when interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    half.replace(path)


def record(
    name: str,
    sizes: Sequence[str],
    counts: Sequence[int],
    device: str,
    folder: Path,
    stages: Sequence[int] = (0, 1, 2, 3),
    keep: bool = False,
) -> Path | None:
    """Run an experiment and write its file after every run; returns the path, or None where there is nothing
    to run.

    Args:
        keep: what the file has is not run again.
    """
    chosen = experiment(name)
    if device == "cuda" and not chosen.may_share:
        counts = [ranks for ranks in counts if ranks <= gpu_count()]
    elsewhere = chosen.needs_gpu if device == "cpu" else chosen.needs_cpu
    todo = [] if elsewhere else chosen.plan(sizes, counts, stages)
    if todo and (reason := chosen.missing()):
        print(f"{name}: {reason}")
        return None
    if not todo:
        print(f"{name}: nothing to run with {counts} ranks on {device}")
        return None
    if chosen.libraries:
        preload(*chosen.libraries)
    about = {"gpus": gpu_count() if device != "cpu" else 0, **launch(machine, ranks=1, device=device)[0]}
    path = folder / f"{name}-{about['gpus']}-{re.sub('[^A-Za-z0-9.]+', '-', about['device'])}.json"
    found = (
        json.loads(path.read_text())
        if path.exists()
        else {"experiment": name, "sizes": {}, "shapes": {}, "runs": []}
    )
    known = [(run["ranks"], run["arguments"]) for run in found["runs"]] if keep else []
    for ranks, arguments in todo:
        if (ranks, arguments) in known:
            continue
        if size := arguments.get("size"):
            found["sizes"][size], found["shapes"][size] = asdict(SIZES[size]), shapes(SIZES[size])
        provenance = {
            "on": about,
            "command": " ".join(["python -m helpers.course.recording.record", *sys.argv[1:]]),
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        done = run(name, ranks, arguments, device) | provenance
        if "error" in done and 0 < about["gpus"] < ranks:
            continue  # says nothing of ranks with a GPU of their own
        others = [
            other for other in found["runs"] if (other["ranks"], other["arguments"]) != (ranks, arguments)
        ]
        found["runs"] = [*others, done]
        write(path, found)
    return path if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.course.recording.record",
        description="Record the lessons' experiments at real sizes.  Experiments are named "
        "first, options after them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    sharing = " and ".join(name for name, experiment in EXPERIMENTS.items() if experiment.may_share)
    parser.add_argument(
        "experiments", nargs="*", metavar="experiment", default=list(EXPERIMENTS), help="which to run"
    )
    parser.add_argument("--out", type=Path, default=WORK / "recorded", help="folder of the JSON files")
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=["1.5B", "7.5B"], help="parameters of the models"
    )
    parser.add_argument(
        "--ranks",
        nargs="+",
        type=int,
        choices=range(1, 65),
        metavar="RANKS",
        default=[1, 2, 4, 8],
        help="as many as there are GPUs for",
    )
    parser.add_argument(
        "--stages", nargs="+", type=int, choices=range(4), default=[0, 1, 2, 3], help="of the experiment zero"
    )
    parser.add_argument(
        "--share",
        action="store_true",
        help=f"{sharing}: more ranks than GPUs too, which share them; without times",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="do not run again what the files have, for instance of an interrupted recording",
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: to try the recorder; and for nvme, qlora and autotuning",
    )
    options = parser.parse_args()
    if unknown := set(options.experiments) - set(EXPERIMENTS):
        parser.error(f"{', '.join(sorted(unknown))}: experiments are {', '.join(EXPERIMENTS)}")
    gpus = gpu_count()
    counts = [
        ranks
        for ranks in options.ranks
        if options.device == "cpu" or ranks <= gpus or (options.share and gpus)
    ]
    if not counts:
        wanted = " or ".join(map(str, options.ranks))
        parser.error(
            f"{wanted} ranks need a GPU each, and there are {gpus} here: `zero --device cpu "
            "--sizes tiny` records a small model without"
        )
    paths = [
        record(name, options.sizes, counts, options.device, options.out, options.stages, options.keep)
        for name in options.experiments
    ]
    for path in filter(None, paths):
        print(path)
    if not any(paths):
        sys.exit("nothing was recorded")


if __name__ == "__main__":
    main()
