"""What transformers' Trainer and Accelerate hand to `deepspeed.initialize` in real ranks: functions for
`launch`, and a script for `accelerate launch`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

MODEL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
MODEL |= {"model_type": "llama", "vocab_size": 100}


class Handed(Exception):
    """Thrown in the place of DeepSpeed's initialisation."""


def several(cases):
    """{name: what is handed on by the Trainer with these arguments, or by Accelerate alone where they are
    None}, one after another in the same ranks."""
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    # Without a GPU it would count each process alone.
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.NO)
    found = {}
    for name, values in cases.items():
        found[name] = accelerators() if values is None else trainers(values)
        AcceleratorState._reset_state(reset_partial_state=True)
    return found


def trainers(values):
    """What the Trainer hands on: {"config": DeepSpeed's, "optimizer": the name of its class and whether it is
    fused, "checkpointing": whether blocks are}; else {"refused": the words}."""
    import transformers
    from transformers import training_args

    training_args.is_torch_bf16_gpu_available = lambda: True  # as on every GPU of today
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**MODEL))

    def train():
        arguments = transformers.TrainingArguments(report_to="none", output_dir="/nonexistent", **values)
        transformers.Trainer(model, arguments, train_dataset=[{"input_ids": [1], "labels": [1]}] * 99).train()

    return handed(train) | {"checkpointing": model.is_gradient_checkpointing}


def accelerators():
    """The same of a program that uses Accelerate alone, with micro-batches of 3 sequences."""
    import torch
    import transformers
    from accelerate import Accelerator

    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**MODEL))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader([1] * 99, batch_size=3)
    return handed(lambda: Accelerator().prepare(model, optimizer, loader))


def handed(work):
    import deepspeed

    def initialize(config_params, optimizer=None, **_):
        raise Handed(config_params, optimizer)

    deepspeed.initialize = initialize
    try:
        work()
    except Handed as found:
        config, optimizer = found.args
        how = [type(optimizer).__name__, bool(getattr(optimizer, "defaults", {}).get("fused"))]
        return {"config": config, "optimizer": how}
    except Exception as error:
        return {"refused": str(error)}


if __name__ == "__main__":  # for `accelerate launch`: a file with cases, and that of the answers
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {}  # else it compiles its shared-memory collectives
    answers = several(json.loads(Path(sys.argv[1]).read_text()))
    if os.environ["RANK"] == "0":
        Path(sys.argv[2]).write_text(json.dumps(answers))
