"""The lessons' experiments at any size, as functions for `launch`: what `helpers.course.recording.record`
runs on GPUs and stores.

Each returns plain numbers, so that a report can be written as JSON; those that use DeepSpeed take its
configuration, `config`.  Sequences are as long as the model's
context.  Bytes are exact; seconds are wall-clock time of this rank."""

from __future__ import annotations

import io
import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout

import deepspeed
import deepspeed.comm as comm
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from helpers.course import corpus, models
from helpers.course.models import GPTSize
from helpers.course.models.factories import counted_build
from helpers.course.recording.experiment import MICRO_BATCHES
from helpers.course.recording.in_ranks import (
    built,
    busy,
    device,
    engine_of,
    highest,
    noted,
    on_gpu,
    rows,
    seconds_of,
)
from helpers.tools.measure.clock import Clock
from helpers.tools.measure.ledger import Ledger

PIPELINE_WARM_UPS, PIPELINE_STEPS = 2, 5  # by the clock
MESSAGE_WARM_UPS, MESSAGE_REPETITIONS = 3, 20
BUILDS, ENOUGH_SECONDS = 3, 30  # how often a model is built by the clock, unless that takes so long


def zero(size: GPTSize, config: dict) -> dict:
    """Two steps of ZeRO under the ledger, the second one noted; `helpers.course.recording.speed` has steps by
    the clock.

    Returns:
        {"start": peak bytes of everything before the second step, "moments": {moment: bytes as `noted`, the
        peak since the moment before}}.
    """

    def micro_batch(number):
        batch = rows(number, size.context)  # held until the backward pass has ended
        engine.backward(engine(*batch))

    deepspeed.init_distributed()
    moments = {}
    with Ledger() as ledger:
        engine = engine_of(built(size, config), config)
        ledger.watch(engine)
        for micro in range(2 * MICRO_BATCHES):
            if micro == MICRO_BATCHES:
                start = noted(ledger.snapshot("start"))["peak"]
            micro_batch(micro)
            if micro >= MICRO_BATCHES:
                moment = "after backward" if micro == 2 * MICRO_BATCHES - 1 else "between micro-batches"
                moments[moment] = noted(ledger.snapshot(moment))
            engine.step()
        moments["after step"] = noted(ledger.snapshot("after step"))
    return {"start": start, "moments": moments}


def activations(size: GPTSize, checkpointing: bool) -> dict[str, int]:
    """What a forward pass of one sequence keeps, in bf16 and without DeepSpeed: {"kept": bytes, "peak": bytes
    of forward and backward}."""
    with Ledger(device().partition(":")[0]) as ledger:
        with torch.device(device()):
            model = models.build(models.GPT, size, checkpointing=checkpointing).bfloat16()
        ledger.watch(model)
        batch = corpus.batch(0, 1, size.context, device=device())
        ledger.snapshot("start")
        loss = model(*batch)
        kept = ledger.snapshot("after forward")
        loss.backward()
        peak = ledger.snapshot("after backward").peak
    return {"kept": kept["activations"], "peak": peak}


def bandwidth(message_bytes: Sequence[int]) -> dict[str, list[float]]:
    """Seconds of one all-reduce for each size of message: {"seconds": medians, "lowest", "highest"}, all
    ranks beginning together each time."""
    deepspeed.init_distributed()
    times = []
    for size in message_bytes:
        message, series = torch.ones(size // 4, device=device()), []
        for _ in range(MESSAGE_WARM_UPS + MESSAGE_REPETITIONS):
            comm.barrier()
            series.append(seconds_of(comm.all_reduce, message))
        times.append(series[MESSAGE_WARM_UPS:])
    statistic = {"seconds": statistics.median, "lowest": min, "highest": max}
    return {name: [of(series) for series in times] for name, of in statistic.items()}


def outside_allocator(buffer: int) -> dict[str, int]:
    """What a rank's GPU has given away outside torch's allocator, in bytes, after each of a job's first
    operations; empty on a CPU.  NCCL's `buffer` has so many bytes per channel and peer."""
    os.environ["NCCL_BUFFSIZE"] = str(buffer)
    ranks, given_away = int(os.environ["WORLD_SIZE"]), {}
    part, whole = torch.ones(2**20, device=device()), torch.ones(2**20 * ranks, device=device())
    square = torch.ones(1024, 1024, device=device(), dtype=torch.bfloat16)

    def start():
        deepspeed.init_distributed()
        comm.barrier()

    operations = {
        "context": lambda: None,
        "matrix products": lambda: torch.nn.functional.gelu(square @ square).sum(),
        "communicator": start,
        "all-reduce": lambda: comm.all_reduce(whole),
        "all-gather": lambda: comm.all_gather_into_tensor(whole, part),
        "reduce-scatter": lambda: comm.reduce_scatter_tensor(part, whole),
        "second communicator": lambda: comm.all_reduce(part, group=comm.new_group(range(ranks))),
    }
    for name, operation in operations.items():
        seconds_of(operation)
        if on_gpu():
            free, total = torch.cuda.mem_get_info()
            given_away[name] = total - free - torch.cuda.memory_reserved()
    return given_away


def tensor(size: GPTSize, config: dict) -> dict:
    """All ranks share every matrix (AutoTP): {"elements": of each parameter on this rank, "activations":
    bytes, "moments": as in `zero`}."""
    deepspeed.init_distributed()
    with Ledger() as ledger:
        engine = engine_of(built(size, config, checkpointing=False), config)
        ledger.watch(engine)
        for micro in range(MICRO_BATCHES + 1):
            loss = engine(*corpus.batch(micro, 1, size.context, device=engine.device))
            kept = ledger.snapshot("after forward")
            engine.backward(loss)
            del loss
            if micro < MICRO_BATCHES:
                engine.step()
        moments = {"between micro-batches": noted(ledger.snapshot("between micro-batches"))}
    elements = [parameter.numel() for parameter in engine.module.parameters()]
    return {"elements": elements, "activations": kept["activations"], "moments": moments}


def pipeline(size: GPTSize, config: dict) -> dict:
    """Consecutive layers on consecutive ranks: two steps under the ledger, and after it has closed steps by
    the clock.

    Returns:
        {"elements": of each parameter on this rank, "moments": {"after step": bytes as `noted`}, "seconds":
        [of each timed step], "timeline": [["F" or "B", start, end]] of the step that took the median time on
        the slowest rank, seconds on an axis of all ranks, "busy": of further steps, by `busy`; a message that
        waits for the other stage counts as one under way}.
    """
    deepspeed.init_distributed()
    kinds = (models.Embedding, *[models.Block] * size.layers, models.Head)

    def one_step(step):
        batch = corpus.batch(step, config["gradient_accumulation_steps"], size.context, device=engine.device)
        engine.train_batch((ids, targets.clone()) for ids, targets in zip(*(part.split(1) for part in batch)))

    with redirect_stdout(io.StringIO()):
        with Ledger() as ledger:
            layers, loss = [LayerSpec(kind, size) for kind in kinds], models.NextTokenLoss()
            stages = {"num_stages": comm.get_world_size(), "partition_method": "parameters"}
            net = PipelineModule(layers, loss_fn=loss, **stages)
            engine, *_ = deepspeed.initialize(model=net, config=config)
            ledger.watch(engine)
            for step in range(2):
                one_step(step)
            moments = {"after step": noted(ledger.snapshot("after step"))}
        clocked = schedule_of(engine, one_step)
    elements = [parameter.numel() for parameter in engine.module.parameters()]
    return {"elements": elements, "moments": moments, **clocked}


def schedule_of(engine: PipelineEngine, one_step: Callable[[int], None]) -> dict:
    """Steps of a pipeline by the clock: what `pipeline` returns of "seconds", "timeline" and "busy"."""
    clocks = []
    for step in range(PIPELINE_WARM_UPS + PIPELINE_STEPS):
        with Clock() as clock:
            clock.watch(engine)
            one_step(step)
        clocks.append(clock)
    profiled = busy(lambda: one_step(0))
    clocks = clocks[PIPELINE_WARM_UPS:]
    slowest = [highest(clock.seconds) for clock in clocks]
    median = clocks[slowest.index(statistics.median(slowest))]  # the same step on every rank
    names = {"forward": "F", "backward": "B"}
    passes = sorted((start, end, names[kind]) for kind, _, start, end in median.boxes if kind in names)
    return {
        "seconds": [clock.seconds for clock in clocks],
        "timeline": [[name, round(start, 6), round(end, 6)] for start, end, name in passes],
        "busy": profiled,
    }


def construction(size: GPTSize, config: dict, how: str) -> dict[str, int | list[float]]:
    """Building a model, once under the ledger and then by the clock without it.

    Args:
        how: "whole, host", every rank all of it in fp32 in the host's memory; "whole, device", the same in
            bf16 on the rank's device; or "partitioned", in bf16 under `zero.Init` on the device.

    Returns:
        {"held", "peak": bytes, "seconds": [of each further build, at most `BUILDS` and about `ENOUGH_SECONDS`
        of them]}.
    """
    deepspeed.init_distributed()

    def build():
        if how == "whole, device":
            return built(size, {"zero_optimization": {"stage": 0}}, checkpointing=False)
        return models.build(models.GPT, size, config=config if how == "partitioned" else None)

    held = counted_build(build, "cpu" if how == "whole, host" else None)
    seconds = []
    while len(seconds) < BUILDS and highest(sum(seconds)) < ENOUGH_SECONDS:
        comm.barrier()
        seconds.append(seconds_of(build))
    return held | {"seconds": seconds}


def offload_error(config: dict, mended: bool) -> dict[str, str]:
    """A step of ZeRO-3 with the optimizer offloaded and gradients clipped, as DeepSpeed is, or with one mend
    taken away: {"raised": the error's words, or ""}.

    Between its pull requests 5256 and 5504 (April 2024) DeepSpeed left the norm of offloaded gradients on the
    GPU; since then it moves it to the CPU, where they are.
    """
    deepspeed.init_distributed()
    if not mended:
        place, name = DeepSpeedZeroOptimizer_Stage3, "complete_grad_norm_calculation_for_cpu_offload"
        norm = getattr(place, name)
        setattr(place, name, lambda *values: norm(*values).to(device()))
    engine = engine_of(models.build(models.GPT, config=config), config)
    for micro in range(MICRO_BATCHES):
        engine.backward(engine(*rows(micro, models.TINY.context)))
        try:
            engine.step()
        except RuntimeError as error:
            return {"raised": str(error)}
    return {"raised": ""}
