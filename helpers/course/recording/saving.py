"""Checkpoints of the job by the clock: written whole while training waits, copied to the host's memory alone,
and written behind the next steps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from helpers.course import job
from helpers.course.job.plans import configuration as of_plan
from helpers.course.job.reference import cut
from helpers.course.recording.in_ranks import highest, seconds_of
from helpers.tools import theory

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

BLOCKS = 8  # of 32: the files of more take minutes
MODEL = cut(BLOCKS)


def configuration(ranks: int) -> dict:
    """Stage 1, and a step of one micro-batch."""
    return of_plan(ranks, stage=1, reduce_bucket_size=50_000_000) | {"gradient_accumulation_steps": 1}


def predicted(ranks: int) -> dict[str, float]:
    """{"bytes": of all files: weights in bf16, masters and Adam's means in fp32; "copy": seconds of a rank's
    share at 25 GB/s}."""
    elements = theory.gpt_parameters(theory.LlamaSize.of(job.MODELS[MODEL]))
    return {"bytes": 14 * elements, "copy": (12 / ranks + 2) * elements / 25e9}


def saving(config: dict, scratch: str) -> dict[str, float | int | list]:
    """After two steps, each on the slowest rank.

    Returns:
        {"bytes": of all files of a checkpoint, "step", "save": seconds of `save_checkpoint`, "sync": until
        the disk has it, "load": of `load_checkpoint`, "states": bytes that this rank copies, "pin": seconds
        to make room for them in pinned memory, "copies": [seconds of each copy to there], "asynchronous":
        torch's `async_save` of the same bytes, seconds until it returns, "written": until its files are
        there}.
    """
    import deepspeed
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from transformers import AutoConfig, AutoModelForCausalLM
    from helpers.tools.rehearsal.of_transformers import checkpointed

    deepspeed.init_distributed()
    with torch.device("cuda"):
        shape = AutoConfig.for_model(**job.MODELS[MODEL])
        model = checkpointed(AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).train())
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    ids = torch.randint(3, 1000, (1, job.SEQUENCE), device=engine.device)

    def step():
        engine.backward(engine(input_ids=ids, labels=ids, use_cache=False).loss)
        engine.step()

    step()
    found = {"step": slowest(step)}
    whole, parts = Path(scratch) / "whole", Path(scratch) / "parts"
    found["save"] = slowest(partial(engine.save_checkpoint, str(whole), tag="one"))
    found["sync"] = slowest(os.sync)
    found["bytes"] = sum(file.stat().st_size for file in whole.rglob("*") if file.is_file())
    found["load"] = slowest(partial(engine.load_checkpoint, str(whole), tag="one"))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(whole)
    own = states(engine)
    found["states"] = sum(tensor.nbytes for tensor in own)
    room = []

    def pin():
        room.extend(torch.empty_like(each, device="cpu").pin_memory() for each in own)

    def copy():
        for to, each in zip(room, own):
            to.copy_(each, non_blocking=True)

    found["pin"] = slowest(pin)
    found["copies"] = [slowest(copy) for _ in range(3)]
    mine = {f"{dist.get_rank()}.{place}": tensor for place, tensor in enumerate(own)}
    group, futures = dist.new_group(backend="gloo"), []
    started = partial(dcp.async_save, mine, checkpoint_id=str(parts), process_group=group)
    found["asynchronous"] = slowest(lambda: futures.append(started()))
    found["written"] = found["asynchronous"] + slowest(lambda: futures[0].result())
    return found


def slowest(call: Callable[[], object]) -> float:
    """Seconds of a call on the slowest rank."""
    return round(highest(seconds_of(call)), 6)


def states(engine: DeepSpeedEngine) -> list[torch.Tensor]:
    """This rank's masters and Adam's two means, and, on rank 0, the weights."""
    held = [tensor for state in engine.optimizer.optimizer.state.values() for tensor in state.values()]
    held = [tensor for tensor in held if torch.is_tensor(tensor) and tensor.dim()]
    masters = list(engine.optimizer.single_partition_of_fp32_groups)
    weights = list(engine.module.parameters()) if engine.global_rank == 0 else []
    return [tensor.detach() for tensor in (*masters, *held, *weights)]
