"""The longest sequence that a way to train has room for: a straight line through two short ones says where
memory ends, and there it is tried."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from helpers.course.recording.experiments import _device, _limit_memory, _wait

CLOSER = 0.01  # of the length that the straight line gives: how much longer each try near it is
SHORT_OF = 0.06  # so much below it the tries begin
CAREFUL = 1.06  # the next try where a longer sequence had the lower peak, as asynchronous gathers can have it


@dataclass(frozen=True, kw_only=True)
class LongText:
    """A way to train on long sequences, a case of the experiment `longest_sequence`.

    Attributes:
        ranks: how many.
        stage: of ZeRO.
        shared: all ranks share one sequence by Ulysses (DeepSpeed's `UlyssesSPAttentionHF`); else each has
            one of its own.
        checkpointing: of every block.
        tile: tokens whose logits exist at once; None for all.
        host: what checkpoints keep lies in the host's memory.
    """

    ranks: int = 1
    stage: int = 0
    shared: bool = False
    checkpointing: bool = False
    tile: int | None = None
    host: bool = False


def longest_sequence(
    text: tuple[dict, int], way: LongText, limit: int, config: dict
) -> dict[str, list[dict[str, float]] | int | str]:
    """Steps of LoRA on ever longer sequences, until memory ends.

    Args:
        text: (keys of transformers' GlmConfig, tokens of the first sequence).
        way: a `LongText`.
        limit: bytes: what torch's allocator may have of a GPU; on a CPU a ledger says afterwards whether a
            rank needed more, so that no rank stops in the middle of a step while another waits for it.

    Returns:
        {"tried": [{"tokens": of the whole sequence, "peak": bytes of the step, on the rank that needed the
        most, "seconds"}], all of which fitted, "failed": tokens, "words": of the error}.
    """
    import deepspeed
    import torch

    deepspeed.init_distributed()
    _limit_memory(limit)
    tried = []
    with _peaks() as peak:
        engine = _engine(text[0], way, config)
        tokens, grain = text[1], text[1] // 8
        try:
            _step(engine, way, tokens)  # makes the optimizer's states
            peak()
            while True:
                started = time.perf_counter()
                _step(engine, way, tokens)
                _wait()
                seconds = time.perf_counter() - started
                most = _most(peak())  # the same on all ranks, which go on with the same
                if most > limit:
                    raise torch.OutOfMemoryError(f"out of memory: a rank needed {most:,} bytes, of {limit:,}")
                tried.append({"tokens": tokens, "peak": most, "seconds": seconds})
                tokens = _next(tried, limit, grain)
        except torch.OutOfMemoryError as error:
            return {"tried": tried, "failed": tokens, "words": str(error).splitlines()[0]}


def _next(tried, limit, grain):
    """How many tokens to try next: twice as many while that fits by the straight line through the last two
    peaks, then ever closer to its end."""
    last = tried[-1]
    if len(tried) == 1:
        return 2 * last["tokens"]
    before = tried[-2]
    per_token = (last["peak"] - before["peak"]) / (last["tokens"] - before["tokens"])
    if per_token > 0:
        end = last["tokens"] + (limit - last["peak"]) / per_token
        wanted = min(2 * last["tokens"], max(last["tokens"] + CLOSER * end, (1 - SHORT_OF) * end))
    else:
        wanted = CAREFUL * last["tokens"]
    return math.ceil(wanted / grain) * grain


@contextmanager
def _peaks():
    """A function that returns the most bytes since its last call: by torch's allocator on a GPU, by a ledger
    on a CPU."""
    if "cuda" not in _device():
        from helpers.tools.measure.ledger import Ledger

        with Ledger() as ledger:
            yield lambda: ledger.snapshot("step").peak
        return
    import torch
    from helpers.tools.measure.internals import grow_segments

    grow_segments()

    def peak():
        highest = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        torch.cuda.empty_cache()  # blocks of a shorter sequence are of no use to a longer one
        torch.cuda.reset_peak_memory_stats()
        return highest

    yield peak


def _most(count):
    """The largest number of all ranks."""
    import deepspeed.comm as comm

    counts = [None] * comm.get_world_size()
    comm.all_gather_object(counts, count)
    return max(counts)


def _engine(shape, way, config):
    """ChatGLM with bf16 adapters and its loss, in this way."""
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from helpers.course import models

    partitioned = config["zero_optimization"]["stage"] == 3
    with nullcontext() if partitioned else torch.device(_device()):
        glm = models.chatglm(shape, attn_implementation="sdpa")
        model = models.build_transformers(glm, config if partitioned else None)
        # without groups for DeepSpeed: it then averages gradients over these ranks, which is what is wanted
        if way.shared:
            UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", comm.get_world_size(), 1)
        model = models.with_adapters(model, in_fp32=False)
    if way.checkpointing:
        models.checkpointed(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model = models.WithLoss(model).train()
    return deepspeed.initialize(model=model, model_parameters=trained, config=config)[0]


def _step(engine, way, tokens):
    """One step on a sequence of so many tokens: each rank's own, or one that all ranks share."""
    import deepspeed.comm as comm
    import torch
    from helpers.course import corpus

    rank, ranks = comm.get_rank(), comm.get_world_size()
    if way.shared:
        part = tokens // ranks
        mine = slice(rank * part, (rank + 1) * part)
        whole = corpus.batch(0, 1, tokens, device=engine.device)
        ids, targets = (rows[:, mine].contiguous() for rows in whole)
        positions = torch.arange(mine.start, mine.stop, device=engine.device)[None]
    else:
        ids, targets = corpus.batch(0, ranks, tokens, rank, ranks, engine.device)
        positions = torch.arange(tokens, device=engine.device)[None]
    engine.module.chunks = -(-ids.shape[1] // way.tile) if way.tile else 1
    with torch.autograd.graph.save_on_cpu(pin_memory="cuda" in _device()) if way.host else nullcontext():
        loss = engine(ids, targets, positions)
    engine.backward(loss)
    del loss
    engine.step()
