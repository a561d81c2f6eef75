"""Two trainings of lesson 08, in a rank: by its own ZeRO-2, and by DeepSpeed where gradients wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from helpers.course import models
from helpers.course.training.comparable import STEPS, gradients_of, learned, own_rows, weights_of
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic


def flatten(parameters: Sequence[torch.nn.Parameter], ranks: int) -> torch.Tensor:
    """One tensor of all parameters, padded so that the ranks can share it; the parameters become views of it
    (built in lesson 07)."""
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    flat, offset = torch.nn.functional.pad(flat, (0, -len(flat) % ranks)), 0
    for parameter in parameters:
        parameter.data = flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return flat


def zero_2_by_hand(
    step: Callable[[int, SimpleNamespace], float],
    reduce_bucket: Callable[[dict[int, torch.Tensor], torch.Tensor], None],
    release_by_bucket: Callable[
        [list[torch.nn.Parameter], int, Callable[[dict[int, torch.Tensor]], None]], Callable[[], None]
    ],
    dtype: torch.dtype,
    bucket_size: int = 10_000,
) -> dict:
    """The training by the lesson's ZeRO-2, with a model of `dtype` and buckets of so many
    elements.

    Args:
        step: makes one optimizer step from its number and the *job* below; returns the loss.
        reduce_bucket: function of a bucket and `job.own`.
        release_by_bucket: function of parameters, bucket size and what reduces a bucket; returns `job.flush`.

    The job has `model`, on the rank's device; `flat`, of shape (N * S,), of which its parameters are views;
    `master`, of shape (S,), fp32, this rank's shard, and `adam`, its AdamW; `own`, of shape (S,), zeros in
    `dtype`, for the shard of the gradients; `flush`; `buckets`, a list to which {where a gradient begins: its
    elements} of each reduced bucket is appended, which a step may clear; and `ledger`.

    Returns:
        {"losses": of this rank, "weights", "gradients": tensors, and of the last step "traffic": a `Traffic`,
        "held": the job's `held` as the step left it, "buckets": the job's, "history": the `History` of its
        passes and its update}.
    """
    import deepspeed
    import deepspeed.comm as comm

    losses = []
    with Ledger() as ledger:
        deepspeed.init_distributed()
        model = models.build(models.GPT).to(deepspeed.get_accelerator().current_device_name(), dtype)
        flat = flatten(list(model.parameters()), comm.get_world_size())
        shard = flat.chunk(comm.get_world_size())[comm.get_rank()]
        master, own = torch.nn.Parameter(shard.float().clone()), torch.zeros_like(shard)
        adam = torch.optim.AdamW([master], lr=1e-3)
        job = SimpleNamespace(model=model, flat=flat, master=master, adam=adam, own=own, ledger=ledger)
        job.buckets, job.held = [], None
        ledger.watch(model, adam)
        ledger.label("master weights", master)
        ledger.label("gradients", own)

        def reduce(bucket):
            job.buckets.append({start: len(gradient) for start, gradient in bucket.items()})
            reduce_bucket(bucket, own)

        job.flush = release_by_bucket(list(model.parameters()), bucket_size, reduce)
        for number in range(STEPS):
            with Traffic() as traffic:
                losses.append(step(number, job))
    report = {"losses": losses, **learned(model, adam, master), "traffic": traffic, "held": job.held}
    return report | {"buckets": job.buckets, "history": ledger.history("start", "after step")}


def coalesced(config: dict, micro_batches: int) -> dict:
    """The training by DeepSpeed where gradients stay on each rank until a step's last micro-batch
    (`engine.coalesce_grad_reduction`).

    Args:
        config: DeepSpeed's, of one micro-batch in a step: the loop divides the loss by `micro_batches`.

    Returns:
        {"losses": of this rank, "weights", "gradients": tensors, and of the last step "traffic": a `Traffic`,
        "held": a `Snapshot` before the reduction}.
    """
    import deepspeed

    means = []
    with Ledger() as ledger:
        model = models.build(models.GPT)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for step in range(STEPS):
            rows, losses = own_rows(step, engine.device), []
            with Traffic() as traffic:
                with engine.coalesce_grad_reduction():
                    for micro_batch in zip(*(part.chunk(micro_batches) for part in rows)):
                        losses.append(engine(*micro_batch) / micro_batches)
                        engine.backward(losses[-1])
                    held = ledger.snapshot("before the reduction")
                engine.step()
            means.append(sum(loss.item() for loss in losses))
    report = {"losses": means, "weights": weights_of(model), "traffic": traffic, "held": held}
    return report | {"gradients": gradients_of(model, engine.optimizer)}
