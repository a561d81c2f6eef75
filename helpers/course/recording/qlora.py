"""Adapters beside weights of four bits (QLoRA) under ZeRO, on a CPU: the experiment `qlora`."""

from __future__ import annotations

import importlib.util

from helpers.course.recording.experiments import _rows


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
    import deepspeed
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.utils import logging
    from helpers.course import models
    from helpers.tools.measure.ledger import Ledger

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
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
        if train:
            engine.train()
        ledger.watch(engine)
        for step in range(3):
            loss = engine(*_rows(step, shape[1], engine.device))
            engine.backward(loss)
            losses.append(loss.item())
            del loss
            engine.step()
        held = ledger.snapshot("after step").categories
    parameters = [parameter for parameter in engine.module.parameters() if hasattr(parameter, "quant_state")]
    states = [parameter.quant_state for parameter in parameters]
    return {
        "losses": losses,
        "held": held,
        "quantised": {
            part: sum(getattr(state, part).nbytes for state in states) for part in ("absmax", "code")
        },
        "packed": sum(getattr(state, "packing_format_for_cpu", False) for state in states),
        "bitsandbytes": bitsandbytes.__version__,
    }
