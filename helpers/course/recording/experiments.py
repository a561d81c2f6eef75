"""The lessons' experiments at any size, as functions for `launch`: what `helpers.course.recording.record`
runs on GPUs and stores.

Each returns plain numbers, so that a report can be written as JSON; those that use DeepSpeed take its
configuration, `config`, which `helpers.course.recording.table` makes.  Sequences are as long as the model's
context.  Bytes are exact; seconds are wall-clock time of this rank."""

from __future__ import annotations

import io
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.course.models import GPTSize

MICRO_BATCHES = 2  # of a step, where an experiment has no number of its own
PIPELINE_WARM_UPS, PIPELINE_STEPS = 2, 5  # by the clock
MESSAGE_WARM_UPS, MESSAGE_REPETITIONS = 3, 20
BUILDS, ENOUGH_SECONDS = 3, 30  # how often a model is built by the clock, unless that takes so long


def _device():
    from deepspeed.accelerator import get_accelerator

    return get_accelerator().current_device_name()


def _sharing():
    """Whether ranks share GPUs, so that their seconds say nothing."""
    import torch

    return "cuda" in _device() and int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count()


def _wait():
    from deepspeed.accelerator import get_accelerator

    get_accelerator().synchronize()


def _rows(number, length, device):
    """This rank's sequence of a batch that has one for each rank."""
    import deepspeed.comm as comm
    from helpers.course import corpus

    ranks = comm.get_world_size()
    return corpus.batch(number, ranks, length, comm.get_rank(), ranks, device)


def _read_allocator():
    """What torch's allocator and the driver say on a GPU, in bytes; empty on a CPU.  Gives workspaces back,
    and begins a new peak.

    `requested` is what was asked for, `workspaces` what matrix products hold of it for themselves.  Blocks
    are larger: `rounding` to whole 512 bytes, `unsplit` where the rest of a block was too small to be split
    off (`largest_unsplit`: of one block); together they are `allocated`.  `reserved` is what the allocator
    keeps, `used` what the GPU has given to all its processes.
    """
    import torch
    from helpers.tools.measure.internals import clear_workspaces

    if "cuda" not in _device():
        return {}
    statistics = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    active = [block for block in blocks if block["state"] == "active_allocated"]
    rounded = [-(-block["requested_size"] // 512) * 512 for block in active]
    unsplit = [block["size"] - size for block, size in zip(active, rounded)]
    clear_workspaces()
    requested = statistics["requested_bytes.all.current"]
    noted = {
        "requested": requested,
        "requested_peak": statistics["requested_bytes.all.peak"],
        "rounding": sum(rounded) - sum(block["requested_size"] for block in active),
        "unsplit": sum(unsplit),
        "largest_unsplit": max(unsplit),
        "allocated": statistics["allocated_bytes.all.current"],
        "reserved": statistics["reserved_bytes.all.current"],
        "used": total - free,
        "workspaces": requested - torch.cuda.memory_stats()["requested_bytes.all.current"],
    }
    torch.cuda.reset_peak_memory_stats()
    return noted


def _noted(snapshot):
    """A snapshot of the ledger beside what the allocator says."""
    ledger = {"categories": snapshot.categories, "peak": snapshot.peak, "settled": snapshot.settled}
    return ledger | _read_allocator()


def _built(size, config, checkpointing=True):
    """The course's GPT in bf16, made on this rank's device; under stage 3 in parts."""
    import torch
    from helpers.course import models

    whole = config["zero_optimization"]["stage"] != 3
    torch.set_default_dtype(torch.bfloat16 if whole else torch.float32)
    with torch.device(_device()) if whole else nullcontext():
        model = models.build(models.GPT, size, checkpointing=checkpointing, config=config)
    torch.set_default_dtype(torch.float32)
    return model


def zero(size: GPTSize, config: dict) -> dict:
    """Two steps of ZeRO under the ledger, the second one noted.  Their time would say nothing:
    `helpers.course.recording.speed` has steps by the clock.

    Returns:
        {"start": peak bytes of everything before the second step, "moments": {moment: bytes as in `_noted`}}.
         The peak of a moment is that since the moment before.
    """
    import deepspeed
    from helpers.tools.measure.ledger import Ledger

    def micro_batch(number):
        rows = _rows(number, size.context, engine.device)  # held until the backward pass has ended
        engine.backward(engine(*rows))

    deepspeed.init_distributed()
    moments = {}
    with Ledger() as ledger:
        model = _built(size, config)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for micro in range(2 * MICRO_BATCHES):
            if micro == MICRO_BATCHES:
                start = _noted(ledger.snapshot("start"))["peak"]
            micro_batch(micro)
            if micro >= MICRO_BATCHES:
                moment = "after backward" if micro == 2 * MICRO_BATCHES - 1 else "between micro-batches"
                moments[moment] = _noted(ledger.snapshot(moment))
            engine.step()
        moments["after step"] = _noted(ledger.snapshot("after step"))
    return {"start": start, "moments": moments}


def activations(size: GPTSize, checkpointing: bool) -> dict[str, int]:
    """What a forward pass of one sequence keeps, in bf16 and without DeepSpeed: {"kept": bytes, "peak": bytes
    of forward and backward}."""
    import torch
    from helpers.course import corpus, models
    from helpers.tools.measure.ledger import Ledger

    with Ledger(_device().partition(":")[0]) as ledger:
        with torch.device(_device()):
            model = models.build(models.GPT, size, checkpointing=checkpointing).bfloat16()
        ledger.watch(model)
        batch = corpus.batch(0, 1, size.context, device=_device())
        ledger.snapshot("start")
        loss = model(*batch)
        kept = ledger.snapshot("after forward")
        loss.backward()
        peak = ledger.snapshot("after backward").peak
    return {"kept": kept["activations"], "peak": peak}


def bandwidth(message_bytes: Sequence[int]) -> dict[str, list[float]]:
    """Seconds of one all-reduce for each size of message: {"seconds": medians, "lowest", "highest"}, all
    ranks beginning together each time."""
    import deepspeed
    import deepspeed.comm as comm
    import torch

    deepspeed.init_distributed()
    statistic = {"seconds": statistics.median, "lowest": min, "highest": max}
    noted = {name: [] for name in statistic}
    for size in message_bytes:
        message, series = torch.ones(size // 4, device=_device()), []
        for _ in range(MESSAGE_WARM_UPS + MESSAGE_REPETITIONS):
            comm.barrier()
            _wait()
            started = time.perf_counter()
            comm.all_reduce(message)
            _wait()
            series.append(time.perf_counter() - started)
        for name, of in statistic.items():
            noted[name].append(of(series[MESSAGE_WARM_UPS:]))
    return noted


def outside_allocator(buffer: int) -> dict[str, int]:
    """What a rank's GPU has given away outside torch's allocator, in bytes, after each of a job's first
    operations; empty on a CPU.

    Args:
        buffer: of NCCL per channel and peer, bytes (`NCCL_BUFFSIZE`).
    """
    import deepspeed
    import deepspeed.comm as comm
    import torch

    os.environ["NCCL_BUFFSIZE"] = str(buffer)
    ranks, noted = int(os.environ["WORLD_SIZE"]), {}

    def note(operation):
        _wait()
        if "cuda" in _device():
            free, total = torch.cuda.mem_get_info()
            noted[operation] = total - free - torch.cuda.memory_reserved()

    part, whole = torch.ones(2**20, device=_device()), torch.ones(2**20 * ranks, device=_device())
    note("context")
    square = torch.ones(1024, 1024, device=_device(), dtype=torch.bfloat16)
    torch.nn.functional.gelu(square @ square).sum()
    note("matrix products")
    deepspeed.init_distributed()
    comm.barrier()
    note("communicator")
    comm.all_reduce(whole)
    note("all-reduce")
    comm.all_gather_into_tensor(whole, part)
    note("all-gather")
    comm.reduce_scatter_tensor(part, whole)
    note("reduce-scatter")
    comm.all_reduce(part, group=comm.new_group(range(ranks)))
    note("second communicator")
    return noted


def tensor(size: GPTSize, config: dict) -> dict:
    """All ranks share every matrix (AutoTP): {"elements": of each parameter on this rank, "activations":
    bytes, "moments": as in `zero`}."""
    import deepspeed
    from helpers.course import corpus
    from helpers.tools.measure.ledger import Ledger

    deepspeed.init_distributed()
    with Ledger() as ledger:
        model = _built(size, config, checkpointing=False)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for micro in range(MICRO_BATCHES + 1):
            loss = engine(*corpus.batch(micro, 1, size.context, device=engine.device))
            kept = ledger.snapshot("after forward")
            engine.backward(loss)
            del loss
            if micro < MICRO_BATCHES:
                engine.step()
        moments = {"between micro-batches": _noted(ledger.snapshot("between micro-batches"))}
    return {"elements": _elements(engine), "activations": kept["activations"], "moments": moments}


def _elements(engine):
    return [parameter.numel() for parameter in engine.module.parameters()]


def pipeline(size: GPTSize, config: dict) -> dict:
    """Consecutive layers on consecutive ranks: two steps under the ledger, and after it has closed steps by
    the clock.

    Returns:
        {"elements": of each parameter on this rank, "moments": {"after step": bytes as in `_noted`},
        "seconds": [of each timed step], "timeline": [["F" or "B", start, end]] of the step that took the
        median time on the slowest rank, seconds on an axis of all ranks, "busy": of further steps, what
        `helpers.course.recording.busy` returns; a message that waits for the other stage counts as one under
        way}.
    """
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule
    from helpers.course import corpus, models
    from helpers.course.recording.busy import busy
    from helpers.tools.measure.clock import Clock
    from helpers.tools.measure.ledger import Ledger

    deepspeed.init_distributed()
    layers = [
        LayerSpec(models.Embedding, size),
        *[LayerSpec(models.Block, size)] * size.layers,
        LayerSpec(models.Head, size),
    ]

    def one_step(step):
        rows = corpus.batch(step, config["gradient_accumulation_steps"], size.context, device=engine.device)
        engine.train_batch((ids, targets.clone()) for ids, targets in zip(*(part.split(1) for part in rows)))

    with redirect_stdout(io.StringIO()):
        with Ledger() as ledger:
            loss, stages = models.NextTokenLoss(), deepspeed.comm.get_world_size()
            net = PipelineModule(layers, num_stages=stages, loss_fn=loss, partition_method="parameters")
            engine, *_ = deepspeed.initialize(model=net, config=config)
            ledger.watch(engine)
            for step in range(2):
                one_step(step)
            moments = {"after step": _noted(ledger.snapshot("after step"))}
        clocks = []
        for step in range(2, 2 + PIPELINE_WARM_UPS + PIPELINE_STEPS):
            with Clock() as clock:
                clock.watch(engine)
                one_step(step)
            clocks.append(clock)
        profiled = busy(lambda: one_step(0))
    clocks = clocks[PIPELINE_WARM_UPS:]
    seconds, kinds = [clock.seconds for clock in clocks], {"forward": "F", "backward": "B"}
    boxes = sorted(clocks[_median_of_slowest(seconds)].boxes, key=lambda box: box[2])
    return {
        "elements": _elements(engine),
        "moments": moments,
        "seconds": seconds,
        "timeline": [
            [kinds[kind], round(start, 6), round(end, 6)] for kind, _, start, end in boxes if kind in kinds
        ],
        "busy": profiled,
    }


def _median_of_slowest(seconds):
    """Which of the steps took the median time, where each counts as long as on its slowest rank: the same
    step on every rank."""
    import deepspeed.comm as comm
    import torch

    slowest = torch.tensor(seconds, device=_device())
    comm.all_reduce(slowest, op=comm.ReduceOp.MAX)
    return slowest.argsort()[len(seconds) // 2].item()


def construction(size: GPTSize, config: dict, how: str) -> dict[str, int | list[float]]:
    """Building a model, once under the ledger and then by the clock without it.

    Args:
        how: "whole, host", every rank all of it in fp32 in the host's memory; "whole, device", the same in
            bf16 on the rank's device; or "partitioned", in bf16 under `zero.Init` on the device.

    Returns:
        {"held", "peak": bytes, "seconds": [of each further build, at most `BUILDS` and about `ENOUGH_SECONDS`
        of them]}.
    """
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from helpers.course import models
    from helpers.tools.measure.ledger import Ledger

    deepspeed.init_distributed()

    def build():
        if how == "partitioned":
            return models.build(models.GPT, size, config=config)
        if how == "whole, host":
            return models.build(models.GPT, size)
        return _built(size, {"zero_optimization": {"stage": 0}}, checkpointing=False)

    with Ledger("cpu" if how == "whole, host" else None) as ledger:
        model = build()
        _wait()
        peak = ledger.peak
        held = ledger.watch(model).snapshot("built")["parameters"]
    del model
    seconds, slowest = [], torch.zeros(1, device=_device())
    while len(seconds) < BUILDS and slowest.item() < ENOUGH_SECONDS:
        comm.barrier()
        started = time.perf_counter()
        build()
        _wait()
        seconds.append(time.perf_counter() - started)
        slowest.fill_(sum(seconds))
        comm.all_reduce(slowest, op=comm.ReduceOp.MAX)  # the ranks agree on whether there is another
    return {"held": held, "peak": peak, "seconds": seconds}


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """A way to fine-tune in little memory, a case of the experiment `finetune`.

    Attributes:
        stage: of ZeRO; 0 runs on one rank, others on two.
        fits: whether it needs no more than the limit; another is run without a limit, too, so that its bytes
            are known.
        checkpointing: of every block.
        chunks: parts of the tokens whose logits exist at once.
        offload: the optimizer's states, into the host's memory.
        fp32_adapters: peft's own choice (below stage 3 DeepSpeed makes them bf16 all the same).
        memory_efficient_linear: DeepSpeed's own choice, at stage 3.
    """

    stage: int
    fits: bool
    checkpointing: bool = False
    chunks: int = 1
    offload: bool = False
    fp32_adapters: bool = True
    memory_efficient_linear: bool = True


def finetune(
    shape: tuple[dict, int], case: FineTuning, limit: int | None, config: dict
) -> dict[str, dict | list[float]]:
    """Two steps of LoRA on one long sequence under the ledger, the second one noted; then three more by the
    clock where every rank has a GPU.

    Args:
        shape: (keys of transformers' GlmConfig, tokens of a sequence).
        case: a `FineTuning`.
        limit: bytes that torch's allocator may have on a GPU, or None for all.

    Returns:
        {"held": {moment: bytes as in `_noted`}, "host": {category: bytes} in the host's memory after the
        step, where the optimizer is offloaded from a GPU, "seconds": [of each step]}.

    Raises:
        torch.OutOfMemoryError: saying in which pass and which layer.
    """
    import deepspeed
    from helpers.tools.measure.ledger import Ledger

    deepspeed.init_distributed()
    _limit_memory(limit)
    held, host, seconds, doing = {}, {}, [], {"pass": "while it was built", "layer": ""}
    host_ledger = Ledger("cpu") if case.offload and "cuda" in _device() else nullcontext()
    with _naming_the_place(doing), Ledger() as ledger, host_ledger as on_host:
        model = _adapted(shape[0], case, config)
        for name, layer in model.named_modules():
            layer.register_forward_pre_hook(lambda *_, name=name: doing.update(layer=name))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
        ledger.watch(engine)
        if on_host:
            on_host.watch(engine)

        def one_step(step, note):
            rows = _rows(step, shape[1], engine.device)
            doing["pass"] = "in the forward pass"
            loss = engine(*rows)
            note("after forward")
            doing.update({"pass": "in the backward pass", "layer": ""})
            engine.backward(loss)
            del loss
            note("after backward")
            doing.update({"pass": "in the optimizer's step", "layer": ""})
            engine.step()
            note("after step")

        for step in range(2):
            one_step(step, lambda moment: held.update({moment: _noted(ledger.snapshot(moment))}))
        if on_host:
            host = on_host.categories()
    for step in range(0 if _sharing() else 3):
        _wait()
        started = time.perf_counter()
        one_step(step, lambda moment: None)
        _wait()
        seconds.append(time.perf_counter() - started)
    return {"held": held, "host": host, "seconds": seconds}


def _limit_memory(limit):
    """Let torch's allocator have no more than so many bytes of this rank's GPU."""
    import torch

    if limit is not None and "cuda" in _device():
        whole = torch.cuda.get_device_properties(_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / whole, _device())


def _adapted(shape, case, config):
    """ChatGLM with adapters and its loss, made on this rank's device; under stage 3 in parts."""
    import torch
    from helpers.course import models

    partitioned = config["zero_optimization"]["stage"] == 3
    with nullcontext() if partitioned else torch.device(_device()):
        model = models.build_transformers(models.chatglm(shape), config if partitioned else None)
        model = models.with_adapters(model, in_fp32=case.fp32_adapters)
    if case.checkpointing:
        models.checkpointed(model)
    return models.WithLoss(model, case.chunks).train()


@contextmanager
def _naming_the_place(doing):
    """An error of memory in here says what was being done: `doing["pass"]`, `doing["layer"]`."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        place = " ".join(filter(None, (doing["pass"], doing["layer"])))
        raise torch.OutOfMemoryError(f"CUDA out of memory {place}: {error}") from None


def offload_error(config: dict, mended: bool) -> dict[str, str]:
    """A step of ZeRO-3 with the optimizer offloaded and gradients clipped, as DeepSpeed is, or with one mend
    taken away.

    Between its pull requests 5256 and 5504 (April 2024) DeepSpeed left the norm of offloaded gradients on the
    GPU; since then it moves it to the CPU, where they are.

    Returns:
        {"raised": the error's words, or ""}.
    """
    import deepspeed
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Optimizer
    from helpers.course import models

    deepspeed.init_distributed()
    if not mended:
        norm = Optimizer.complete_grad_norm_calculation_for_cpu_offload
        Optimizer.complete_grad_norm_calculation_for_cpu_offload = lambda *values: norm(*values).to(_device())
    model = models.build(models.GPT, config=config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for micro in range(MICRO_BATCHES):
        engine.backward(engine(*_rows(micro, models.TINY.context, engine.device)))
        try:
            engine.step()
        except RuntimeError as error:
            return {"raised": str(error)}
    return {"raised": ""}
