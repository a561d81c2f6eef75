"""The table "numbers side by side" of docs/rehearse.md: what two estimators and `rehearse` say of the nine
trainings in recorded/rehearsed_models-2-NVIDIA-H200.json, beside what two H200 counted.

    python docs/compare_estimators.py            # two minutes on two cores
    python docs/compare_estimators.py --quick    # without `rehearse`, half a minute
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from helpers import recorded
from helpers.course.models.published import PUBLISHED
from helpers.course.recording.rehearsed_models import TRAININGS, Training

HEAD = (
    *("training", "GPUs", "allocated", "reserved", "driver", "DeepSpeed's estimator"),
    *("accelerate", "`rehearse`: allocated", "reserved", "needs"),
)
HARDWARE = "2 x NVIDIA H200"
QUICK = 7  # columns that need no rehearsal
VERDICT = re.compile(
    r"rank \d+ needs most, ([\d.]+) GB: allocated ([\d.]+), reserved ([\d.]+)(?: to ([\d.]+))?, outside"
)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f}"


def measured(training: str) -> list[str]:
    """GB at most, over ranks and phases: allocated and reserved by torch, given out by the driver."""
    (run,) = recorded.runs("rehearsed_models", hardware=HARDWARE, training=training)
    phases = [phase for rank in run.reports for phase in rank]
    peaks = [max(phase["peak"][what] for phase in phases) for what in ("allocated", "reserved")]
    return [gigabytes(size) for size in (*peaks, max(phase["used"] for phase in phases))]


def by_deepspeed(training: Training) -> str:
    """GB of a GPU by `estimate_zero2_model_states_mem_needs` or `estimate_zero3_...`, and a dash at stages 0
    and 1, for which DeepSpeed has none.  Those of DeepSpeed's functions that take a model tell parameters
    apart by their addresses, which are all 0 on the meta device; so parameters are counted here."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    stage, gpus = training.zero["stage"], training.ranks
    if stage < 2:
        return "–"
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**PUBLISHED[training.model]))
    elements = sum(parameter.numel() for parameter in model.parameters())
    offload = "offload_optimizer" in training.zero
    if stage == 2:
        return gigabytes(estimate_zero2_model_states_mem_needs(elements, gpus, cpu_offload=offload)[1])
    largest = max(sum(part.numel() for part in m.parameters(recurse=False)) for m in model.modules())
    sizes = (elements, largest, gpus)
    found = estimate_zero3_model_states_mem_needs(*sizes, cpu_offload=offload, cpu_offload_params=False)
    return gigabytes(found[1])


def by_accelerate(training: Training) -> str:
    """GB of what `accelerate estimate-memory --dtypes float16` says in GiB under "Training using Adam".  The
    command takes the configuration from the Hub, and does the same with it."""
    with init_empty_weights():
        model = AutoModel.from_config(AutoConfig.for_model(**PUBLISHED[training.model]))
    total, _ = calculate_maximum_sizes(model.float())
    return gigabytes(max(estimate_training_usage(total, "float16").values()))


def by_rehearse(name: str) -> list[str]:
    """GB as the command says of the rank that needs most: allocated, reserved, and with what is outside."""
    training, (run,) = TRAININGS[name], recorded.runs("rehearsed_models", hardware=HARDWARE, training=name)
    with tempfile.TemporaryDirectory() as folder:
        model, config = Path(folder, "config.json"), Path(folder, "ds.json")
        model.write_text(json.dumps(PUBLISHED[training.model] | {"dtype": "bfloat16"}))
        config.write_text(json.dumps(run.configuration))
        words = ["--model", model, "--deepspeed", config, "--ranks", training.ranks]
        words += ["--sequence", training.sequence, *(["--checkpointing"] * training.checkpointing)]
        command = [sys.executable, "-m", "helpers.tools.rehearsal", *map(str, words)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needs, allocated, least, most = VERDICT.search(said).groups()
    return [allocated, f"{least} to {most}" if most else least, needs]


def row(name: str, quick: bool) -> list[str]:
    training = TRAININGS[name]
    cells = [name, str(training.ranks), *measured(name), by_deepspeed(training), by_accelerate(training)]
    return cells if quick else cells + by_rehearse(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only the columns that need no rehearsal")
    quick = parser.parse_args().quick
    head = HEAD[:QUICK] if quick else HEAD
    print(f"| {' | '.join(head)} |")
    print(f"|---|{'--:|' * (len(head) - 1)}")
    for name in [run.arguments["training"] for run in recorded.runs("rehearsed_models", hardware=HARDWARE)]:
        with contextlib.redirect_stdout(io.StringIO()):  # what libraries say when they are imported
            cells = row(name, quick)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
