"""DeepSpeed's autotuner, run to its answer on two CPU ranks: the experiment `autotuning`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.course.recording.experiment import one_micro_batch
from helpers.paths import ROOT
from helpers.tools.launcher.ports import port_for

TRAIN = '''"""What the autotuner starts for each candidate; DeepSpeed ends it when it has measured."""
import argparse

import deepspeed
import torch
from helpers.course import corpus, models

# gloo alone: DeepSpeed's own collectives for one machine would be compiled first
deepspeed.ops.__compatible_ops__ = {}
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank")
parser.add_argument("--deepspeed_config")
deepspeed.init_distributed()
rank, ranks = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
torch.manual_seed(0)
model = models.GPT(models.TINY)
config = parser.parse_args().deepspeed_config
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
sequences = engine.train_micro_batch_size_per_gpu() * ranks
for micro_batch in range(1000):
    engine.backward(engine(*corpus.batch(micro_batch, sequences, models.TINY.context, rank, ranks)))
    engine.step()
'''
RESULTS = "autotuning_results"
# in place of DeepSpeed's `pkill -f` on all hosts after each candidate, which matches other programs too; here
# each candidate ends by itself
PDSH = "#!/bin/sh\nexit 0\n"


def configuration(ranks: int, attempt: int) -> dict:
    """The stages and micro-batches to try are lists."""
    config = one_micro_batch(stage=[0, 1, 2, 3], reduce_bucket_size=100_000)
    return config | {"train_micro_batch_size_per_gpu": [2, 8], "autotuning": {"enabled": True, "fast": True}}


def missing() -> str:
    """Why this machine cannot run it, or ""."""
    if importlib.util.find_spec("tabulate"):
        return ""
    return "tabulate is not installed, which DeepSpeed's autotuner wants: `pip install tabulate`"


def autotuning(config: dict, scratch: str) -> dict:
    """`deepspeed --autotuning tune` with a small GPT on two CPU ranks of this machine.

    Args:
        config: DeepSpeed's, with the section `autotuning`, a list of stages and one of micro-batches.
        scratch: a folder, which the recorder removes.

    Returns:
        {"tried": [{"name", "zero_optimization", "micro_batch", "accumulation", "throughput": samples per
        second or None}] in the order of their runs, "model": what the first run said of it, "best": the
        configuration it wrote, "seconds": in all}.
    """
    place = Path(scratch)
    (place / "bin").mkdir()
    (place / "bin" / "pdsh").write_text(PDSH)
    (place / "bin" / "pdsh").chmod(0o755)
    (place / "train.py").write_text(TRAIN)
    (place / "config.json").write_text(json.dumps(config))
    port = port_for(os.getpid())  # of the first run; each that follows takes the next
    python = Path(sys.executable).parent
    command = [
        *(python / "deepspeed", "--hostfile", "none", "--master_port", str(port), "--autotuning", "tune"),
        *("train.py", "--deepspeed_config", "config.json"),
    ]
    kept = ("HOME", "USER", "TMPDIR")  # without what makes this process a rank
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {
        "PATH": os.pathsep.join([str(place / "bin"), str(python), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "LOCAL_SIZE": "2",  # how many ranks DeepSpeed has places for
    }
    started = time.monotonic()
    with (place / "log.txt").open("wb") as log:
        files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        program = subprocess.Popen(command, cwd=place, env=environment, start_new_session=True, **files)
        try:
            program.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
    if program.returncode or not (place / RESULTS / "ds_config_optimal.json").exists():
        logs = [place / "log.txt", *(place / RESULTS).glob("profile_model_info/stderr.log")]
        words = "\n".join(log.read_text()[-2000:] for log in logs)
        raise RuntimeError(f"deepspeed ended with {program.returncode} and without an answer:\n{words}")
    return found(place) | {"seconds": time.monotonic() - started}


def found(place: Path) -> dict:
    """What the autotuner left in the folder in which it ran; of a candidate that gave no number, None."""
    results = place / RESULTS
    profile = results / "profile_model_info"
    tried = []
    for experiment in sorted(results.glob("*/exp.json"), key=lambda path: path.stat().st_mtime_ns):
        if experiment.parent == profile:
            continue
        said = json.loads(experiment.read_text())
        candidate, metrics = said["ds_config"], experiment.with_name("metrics.json")
        tried.append(
            {
                "name": said["name"],
                "zero_optimization": candidate["zero_optimization"],
                "micro_batch": candidate["train_micro_batch_size_per_gpu"],
                "accumulation": candidate["gradient_accumulation_steps"],
                "throughput": json.loads(metrics.read_text())["throughput"] if metrics.exists() else None,
            }
        )
    return {
        "tried": tried,
        "model": json.loads((profile / "model_info.json").read_text()),
        "best": json.loads((results / "ds_config_optimal.json").read_text()),
    }
