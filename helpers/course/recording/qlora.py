"""Adapters beside weights of four bits (QLoRA) under ZeRO, on a CPU: the experiment `qlora`."""

from __future__ import annotations

import importlib.util

import deepspeed
import torch
from helpers.course import models
from helpers.course.recording.experiment import one_micro_batch
from helpers.course.recording.in_ranks import engine_of, three_steps
from helpers.tools.measure.ledger import Ledger

CASES = [(16, 3, True), *((4, stage, True) for stage in range(4)), (4, 2, False), (4, 3, False)]


def runs() -> list[tuple[int, dict]]:
    names = ("bits", "stage", "train")
    return [(2, {"shape": "tiny", **dict(zip(names, case))}) for case in CASES]


def configuration(ranks: int, stage: int, **others: object) -> dict:
    """Without a large bucket."""
    return one_micro_batch(stage=stage, reduce_bucket_size=10_000, stage3_param_persistence_threshold=0)


def missing() -> str:
    """Why this machine cannot run it, or "".  The course does without bitsandbytes, which has 40 MB."""
    if importlib.util.find_spec("bitsandbytes"):
        return ""
    return "bitsandbytes is not installed: `pip install bitsandbytes`"


def qlora(shape: tuple[dict, int], config: dict, bits: int, train: bool, scratch: str) -> dict:
    """Three steps of LoRA on a model that `from_pretrained` has read, in bf16 or with the matrices of its
    blocks quantised to NF4.

    Dettmers et al. (QLoRA, arXiv 2305.14314, section 3): two weights in a byte, and for each block of 64 the
    largest of them (`absmax`).

    Args:
        shape: (keys of transformers' GlmConfig, tokens of a sequence).
        bits: 4 or 16.
        train: call `engine.train()`; `from_pretrained` returns a model in evaluation mode.
        scratch: a folder that all ranks see; the model is written there and read again.

    Returns:
        {"losses": of the steps, "held": {category: bytes} after the last, "quantised": {"absmax", "code":
        bytes}, "packed": how many matrices bitsandbytes has put into its own order for this CPU,
        "bitsandbytes": its version}.
    """
    import bitsandbytes
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    deepspeed.init_distributed()
    if deepspeed.comm.get_rank() == 0:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(models.chatglm(shape[0])).save_pretrained(scratch)
    deepspeed.comm.barrier()
    four_bits = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    asked = {"quantization_config": four_bits, "device_map": {"": "cpu"}} if bits == 4 else {}
    losses = []
    with Ledger() as ledger:
        model = AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.bfloat16, **asked)
        model = models.WithLoss(models.with_adapters(model, in_fp32=False))
        engine = engine_of(model, config)
        if train:
            engine.train()
        ledger.watch(engine)
        three_steps(engine, shape[1], losses)
        held = ledger.snapshot("after step").categories
    parameters = engine.module.parameters()
    states = [parameter.quant_state for parameter in parameters if hasattr(parameter, "quant_state")]
    scales = {part: sum(getattr(state, part).nbytes for state in states) for part in ("absmax", "code")}
    return {
        "losses": losses,
        "held": held,
        "quantised": scales,
        "packed": sum(getattr(state, "packing_format_for_cpu", False) for state in states),
        "bitsandbytes": bitsandbytes.__version__,
    }
