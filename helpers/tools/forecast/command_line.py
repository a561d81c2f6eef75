"""The options of the command `rehearse`, and its exit status."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Sequence

from ..launcher.failures import RankError
from ..rehearsal import versions

FAILED = 2  # exit status


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


NEEDED, COUNT, SWITCH = {"required": True}, {"type": count}, {"action": argparse.BooleanOptionalAction}
OPTIONS = {  # names: how it is read, what it is
    "model": (NEEDED, "a configuration of transformers (a file, or a folder with config.json), or a GPTSize"),
    "deepspeed": ({}, "DeepSpeed's configuration, JSON with comments and trailing commas"),
    "accelerate": ({}, "Accelerate's file in its place or beside it, as `accelerate config` writes it"),
    "training-arguments": ({}, "transformers' TrainingArguments, JSON or YAML, in its place or beside it"),
    "ranks": (COUNT, "how many GPUs; else what Accelerate's file says"),
    "sequence": (COUNT, "tokens of a sequence; else max_length of the training arguments"),
    "micro-batch": (COUNT, "sequences of a micro-batch; else what DeepSpeed's configuration says, or 1"),
    "checkpointing gradient-checkpointing": (
        SWITCH,
        "keep only each block's input, and compute the block again",
    ),
    "lora": (
        {"metavar": "R[,TARGETS]"},
        "train adapters of this rank by peft, beside its default layers or these",
    ),
    "qlora": ({"metavar": "R[,TARGETS]"}, "the same beside weights of 4 bits by bitsandbytes"),
    "frozen": (
        {"action": "append", "metavar": "PATTERN"},
        "freeze parameters by name, as embed_tokens or 'layers.[0-3]'; several by commas or once more",
    ),
    "gpu": ({}, 'a GPU by name, as "H100 80GB", A100-40GB or 4090'),
    "gpu-memory": ({}, "its bytes instead, as 80GB or 80GiB"),
    "host-memory": ({}, "a machine's own memory, as 1TB, for a verdict on that too"),
    "gpus-per-host": (COUNT, "GPUs of a machine; else what Accelerate's file says, or 8"),
    "outside-tensors": ({}, "of it that torch's allocator never sees; else what was recorded, 2.21GB"),
    "only-rank": ({"type": int}, "rehearse this one; else the first, and those that hold most and least"),
    "tokens": (
        {},
        "of a whole training, as 1T: how many days they take on this --gpu, an H100, H200 or A100",
    ),
    "price": ({}, "dollars of a GPU for an hour, as 2.5: what these days cost"),
    "host-network": ({}, "bytes from a host to others, as 400GB/s; else a card of 50 GB/s for each GPU"),
    "json": ({"action": "store_true"}, "the answer as JSON, sizes in bytes"),
    "figure": ({}, "a PNG file for the first rank's memory over the two steps"),
}
EXAMPLES = """examples:
  does it fit?
    rehearse --model meta-llama/ --deepspeed ds_config.json --ranks 8 --sequence 8192 --gpu "H100 80GB"
  how long does a step take, and what do a trillion tokens cost?
    rehearse ... --ranks 64 --gpu "H100 80GB" --tokens 1T --price 2.5
  adapters beside frozen weights on one small GPU
    rehearse ... --ranks 1 --lora 16 --checkpointing --gpu 4090
  the machine's own memory, with offload
    rehearse ... --gpu-memory 24GB --gpus-per-host 8 --host-memory 1TB
  as data for a program
    rehearse ... --json > answer.json"""
STATUS = """Exit status: 0 where it fits, if only with retries (or no GPU was named), 1 where it does not,
2 where it could not be rehearsed."""


def main(words: Sequence[str] | None = None) -> int:
    """Answer; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rehearse",
        description="Rehearse a training with DeepSpeed: what a rank of any number of GPUs would hold and "
        "send, without GPUs and without memory.",
        epilog=f"{EXAMPLES}\n\n{versions.supported()}\n{STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=versions.told(), help="and what it supports")
    for names, (reading, help) in OPTIONS.items():
        parser.add_argument(*(f"--{name}" for name in names.split()), help=help, **reading)
    parsed = parser.parse_args(words)
    stdout = sys.stdout
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed says that it has found no GPU
    try:
        from .forecasting import forecast
        from .options import read

        # What libraries say, here and in rehearsed ranks, is no part of an answer for programs.
        with contextlib.redirect_stdout(sys.stderr) if parsed.json else contextlib.nullcontext():
            return forecast(read(parsed), stdout)
    except (RankError, TypeError, ValueError) as problem:
        print(f"cannot be rehearsed: {problem}", file=sys.stderr)
        if parsed.json:
            print(json.dumps({"error": str(problem)}))
    except Exception:  # also where torch or DeepSpeed cannot be imported
        traceback.print_exc()
    return FAILED
