"""The longest sequence that a way to train has room for: a straight line through two short ones says where
memory ends, and there it is tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import deepspeed
import deepspeed.comm as comm
import torch
from helpers.course import corpus, models
from helpers.course.recording.experiment import LIMIT, one_micro_batch
from helpers.course.recording.finetune import adapted
from helpers.course.recording.in_ranks import engine_of, highest, limit_memory, on_gpu, rows, seconds_of
from helpers.tools.measure.internals import grow_segments
from helpers.tools.measure.ledger import Ledger

CLOSER = 0.01  # of the length that the straight line gives: how much longer each try near it is
SHORT_OF = 0.06  # so much below it the tries begin
CAREFUL = 1.06  # the next try where a longer sequence had the lower peak, as asynchronous gathers can have it


@dataclass(frozen=True, kw_only=True)
class LongText:
    """A way to train on long sequences, a case of the experiment `longest_sequence`.

    Attributes:
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


_TILED = {"checkpointing": True, "tile": 1024}
_ULYSSES = {"ranks": 2, "shared": True}
LONG_TEXT = {
    "plain": LongText(),
    "checkpointing": LongText(checkpointing=True),
    "checkpointing, tiles": LongText(**_TILED),
    "checkpointing, tiles, host": LongText(host=True, **_TILED),
    "ZeRO-3": LongText(ranks=2, stage=3),
    "ZeRO-3, checkpointing, tiles": LongText(ranks=2, stage=3, **_TILED),
    "Ulysses": LongText(stage=1, **_ULYSSES),
    "Ulysses, checkpointing": LongText(stage=1, checkpointing=True, **_ULYSSES),
    "Ulysses, checkpointing, tiles": LongText(stage=1, **_ULYSSES, **_TILED),
    "Ulysses, ZeRO-3, checkpointing, tiles": LongText(stage=3, **_ULYSSES, **_TILED),
    "Ulysses, ZeRO-3, checkpointing, tiles, host": LongText(stage=3, host=True, **_ULYSSES, **_TILED),
}
TINY_LONG_TEXT = ("checkpointing, tiles", "Ulysses, checkpointing")  # what is tried on a CPU
TINY_LIMIT = 3_000_000  # bytes


def configuration(ranks: int, way: str, **others: object) -> dict:
    """With stage 3 holding no more than a layer's gathered weights."""
    at_once = ("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size")
    stage = LONG_TEXT[way].stage
    keys = dict.fromkeys(at_once, 0) if stage == 3 else {}
    return one_micro_batch(stage=stage, reduce_bucket_size=500_000, **keys)


def runs() -> list[tuple[int, dict]]:
    cases = [("6.2B", way, LIMIT) for way in LONG_TEXT]
    cases += [("tiny", way, TINY_LIMIT) for way in TINY_LONG_TEXT]
    return [(LONG_TEXT[way].ranks, {"text": text, "way": way, "limit": limit}) for text, way, limit in cases]


def longest_sequence(
    text: tuple[dict, int], way: LongText, limit: int, config: dict
) -> dict[str, list[dict[str, float]] | int | str]:
    """Steps of LoRA on ever longer sequences, until memory ends.

    Args:
        text: (keys of transformers' GlmConfig, tokens of the first sequence).
        limit: bytes: what torch's allocator may have of a GPU; on a CPU a ledger says afterwards whether a
            rank needed more, so that no rank stops in the middle of a step while another waits for it.

    Returns:
        {"tried": [{"tokens": of the whole sequence, "peak": bytes of the step, on the rank that needed the
        most, "seconds"}], all of which fitted, "failed": tokens, "words": of the error}.
    """
    deepspeed.init_distributed()
    limit_memory(limit)
    tried = []
    with _peaks() as peak:
        engine = _engine(text[0], way, config)
        tokens, grain = text[1], text[1] // 8
        try:
            _step(engine, way, tokens)  # makes the optimizer's states
            peak()
            while True:
                seconds = seconds_of(_step, engine, way, tokens)
                most = highest(peak())
                if most > limit:
                    raise torch.OutOfMemoryError(f"out of memory: a rank needed {most:,} bytes, of {limit:,}")
                tried.append({"tokens": tokens, "peak": most, "seconds": seconds})
                tokens = _next(tried, limit, grain)
        except torch.OutOfMemoryError as error:
            return {"tried": tried, "failed": tokens, "words": str(error).splitlines()[0]}


def _next(tried: list[dict], limit: int, grain: int) -> int:
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
def _peaks() -> Iterator[Callable[[], int]]:
    """A function that returns the most bytes since its last call: by torch's allocator on a GPU, by a ledger
    on a CPU."""
    if not on_gpu():
        with Ledger() as ledger:
            yield lambda: ledger.snapshot("step").peak
        return
    grow_segments()

    def peak():
        most = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        torch.cuda.empty_cache()  # blocks of a shorter sequence are of no use to a longer one
        torch.cuda.reset_peak_memory_stats()
        return most

    yield peak


def _engine(shape: dict, way: LongText, config: dict) -> deepspeed.DeepSpeedEngine:
    """Of ChatGLM with bf16 adapters and its loss, in this way."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    glm = models.chatglm(shape, attn_implementation="sdpa")
    model = adapted(glm, config, checkpointing=way.checkpointing)
    # without groups for DeepSpeed: it then averages gradients over these ranks, which is what is wanted
    if way.shared:
        UlyssesSPAttentionHF.register_with_transformers(model.model, "sdpa", comm.get_world_size(), 1)
    return engine_of(model, config)


def _step(engine: deepspeed.DeepSpeedEngine, way: LongText, tokens: int) -> None:
    """One step on a sequence of so many tokens: each rank's own, or one that all ranks share."""
    first = 0
    if way.shared:
        part = tokens // comm.get_world_size()
        first = comm.get_rank() * part
        whole = corpus.batch(0, 1, tokens, device=engine.device)
        ids, targets = (row[:, first : first + part].contiguous() for row in whole)
    else:
        ids, targets = rows(0, tokens)
    positions = torch.arange(first, first + ids.shape[1], device=engine.device)[None]
    engine.module.chunks = -(-ids.shape[1] // way.tile) if way.tile else 1
    with torch.autograd.graph.save_on_cpu(pin_memory=on_gpu()) if way.host else nullcontext():
        loss = engine(ids, targets, positions)
    engine.backward(loss)
    del loss
    engine.step()
