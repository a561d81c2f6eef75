"""A small training that is counted: three steps of the course's GPT, what a rank holds at the moments of a
step, and what it sends.

Lessons run it in ranks, beside the technique that a learner has written.  All train on the same eight
sequences of 32 tokens per step, so that their answers can be compared with those of one process, whatever the
number of ranks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from helpers.course import corpus, models
from helpers.tools.measure.internals import is_partitioned
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from types import SimpleNamespace

    from deepspeed import DeepSpeedEngine

SEQUENCES, LENGTH, STEPS = 8, 32, 3  # sequences of a step, over all ranks; tokens of each; optimizer steps
MOMENTS = ("between micro-batches", "after backward", "after step")


class Untied(torch.nn.Module):
    """A GPT whose layers share no parameter: embedding, blocks, and a head with a matrix of its own, each
    seeded by its place in `layers`.

    From token ids and targets, each of shape (B, T), to the loss.
    """

    def __init__(self, size: models.GPTSize) -> None:
        super().__init__()
        made = []
        for place, kind in enumerate((models.Embedding, *[models.Block] * size.layers, models.Head)):
            torch.manual_seed(place)
            made.append(kind(size))
        self.layers = torch.nn.Sequential(*made)

    def forward(self, ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        return models.next_token_loss(self.layers(ids_BT), targets_BT)


def own_rows(
    step: int, device: torch.device | str, sequences: int = SEQUENCES
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of a step's sequences: token ids and targets, each of shape (sequences / ranks,
    LENGTH)."""
    import deepspeed.comm as comm

    return corpus.batch(step, sequences, LENGTH, comm.get_rank(), comm.get_world_size(), device)


def backward(model: Callable[..., torch.Tensor], rows: Iterable[torch.Tensor]) -> float:
    """One forward and one backward pass; the loss, a number."""
    loss = model(*rows)
    loss.backward()
    return loss.item()


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    """All parameters in one fp32 tensor on the CPU, in the model's order.  Where ZeRO-3 or FSDP2 has sharded
    them this is a collective: it gathers them."""
    parameters, gathering = list(model.parameters()), nullcontext()
    if any(is_partitioned(parameter) for parameter in parameters):
        import deepspeed

        gathering = deepspeed.zero.GatheredParameters(parameters)
    with gathering:
        full = [
            parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            for parameter in parameters
        ]
        return torch.cat([parameter.detach().float().flatten().cpu() for parameter in full])


def gradients_of(model: torch.nn.Module, optimizer: object) -> torch.Tensor | None:
    """Adam's running mean of the trained parameters' gradients, in one fp32 tensor on the CPU, in the model's
    order; None for an optimizer without one.

    A check of weights alone may miss a gradient that is twice too large: Adam divides by its size.  The mean
    grows with it.  Under ZeRO and FSDP2 this is a collective.
    """
    from deepspeed.utils import safe_get_full_optimizer_state

    means = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter in optimizer.state:
            mean = optimizer.state[parameter].get("exp_avg")
        else:
            mean = safe_get_full_optimizer_state(parameter, "exp_avg")
        if mean is None:
            return None
        mean = mean.full_tensor() if hasattr(mean, "full_tensor") else mean
        means.append(mean.detach().float().flatten().cpu())
    return torch.cat(means)


def gathered(shard: torch.Tensor, elements: int) -> torch.Tensor:
    """The flat tensor of which every rank has an equal shard, on the CPU, without its padding."""
    import deepspeed.comm as comm

    whole = torch.empty(len(shard) * comm.get_world_size(), dtype=shard.dtype, device=shard.device)
    comm.all_gather_into_tensor(whole, shard.contiguous())
    return whole[:elements].cpu()


def learned(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, master: torch.nn.Parameter
) -> dict[str, torch.Tensor | None]:
    """{"weights", "gradients"} as `weights_of` and `gradients_of` have them, where the optimizer updates this
    rank's shard of all parameters, `master`."""
    weights, mean = weights_of(model), optimizer.state[master].get("exp_avg")
    return {"weights": weights, "gradients": None if mean is None else gathered(mean, len(weights))}


def flatten(parameters: Sequence[torch.nn.Parameter], ranks: int) -> torch.Tensor:
    """One tensor of all parameters, padded so that the ranks can share it; the parameters become views of it
    (built in lesson 07)."""
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    flat, offset = torch.nn.functional.pad(flat, (0, -len(flat) % ranks)), 0
    for parameter in parameters:
        parameter.data = flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return flat


def in_one_process(
    make: Callable[..., torch.optim.Optimizer],
    model: Callable[[models.GPTSize], torch.nn.Module] = models.GPT,
    size: models.GPTSize = models.TINY,
) -> dict[str, list[float] | torch.Tensor]:
    """The training without ranks, in fp32, of `model(size)`, with an optimizer from `make(parameters, lr=)`:
    {"losses", "weights"}, which others are held against."""
    model, losses = models.build(model, size), []
    optimizer = make(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        losses.append(backward(model, corpus.batch(step, SEQUENCES, LENGTH)))
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "weights": weights_of(model), "gradients": gradients_of(model, optimizer)}


def counted(
    make: Callable[[], torch.nn.Module], steps: int = 6, sequences: int = 8, length: int = 64
) -> dict[str, list[float] | int]:
    """Steps with Adam, in a rank, of the model that `make()` returns: {"losses": of each, "flops": of the
    first one's two passes}."""
    from torch.utils.flop_counter import FlopCounterMode

    model, losses, counter = make(), [], FlopCounterMode(display=False)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        with counter if step == 0 else nullcontext():
            losses.append(backward(model, corpus.batch(step, sequences, length)))
        adam.step()
        adam.zero_grad()
    return {"losses": losses, "flops": counter.get_total_flops()}


def one_step(
    engine: DeepSpeedEngine,
    ledger: Ledger,
    rows: Iterable[torch.Tensor],
    after_forward: bool = False,
    look: bool = True,
) -> float:
    """A step of a DeepSpeed engine, in its micro-batches, with a snapshot at each of `MOMENTS` and before
    ("start"); the mean loss.

    With `after_forward` there is one between the last forward pass and its backward pass, too, whose peak is
    then of the backward pass alone. Without `look` the moments are marked only, and ranks do not wait for
    each other.
    """
    total, count = 0.0, engine.gradient_accumulation_steps()
    note = ledger.snapshot if look else ledger.mark
    note("start")
    for micro, (ids, targets) in enumerate(zip(*(part.chunk(count) for part in rows)), 1):
        ledger.mark("forward")
        loss = engine(ids, targets)
        if after_forward and micro == count:
            note("after forward")
        ledger.mark("backward")
        engine.backward(loss)
        total += loss.item() / count
        del loss
        note("after backward" if micro == count else "between micro-batches")
        if micro == count:
            ledger.mark("step")
        engine.step()
    note("after step")
    return total


def train(
    config: dict,
    size: models.GPTSize = models.TINY,
    checkpointing: bool = False,
    after_forward: bool = False,
    early: bool = False,
    steps: int = STEPS,
) -> dict:
    """The training by DeepSpeed, in a rank.

    Args:
        config: DeepSpeed's configuration, a dict; where its micro-batches are of SEQUENCES / (ranks x
        accumulation) sequences, all train on the same. size: a `GPTSize`.
        checkpointing: whether blocks keep only their input and are computed again in the backward pass.
        early: whether a model for stage 3 is partitioned as it is built (lesson 10), and not only by
            `initialize`.
        after_forward: whether there is a snapshot "after forward", of the last micro-batch.
        steps: optimizer steps.  From the second on memory is the same in each, and so are messages, but that
            in the second stage 3 compares among the ranks in which order they use their parameters.

    Returns:
        {"losses": of this rank, "weights": a tensor, and of the last step "traffic": a `Traffic`, "moments":
        {moment: `Snapshot`}, "history": the `History` of its optimizer step, "whole history": that of its
        passes too}.
    """
    import deepspeed

    losses = []
    with Ledger() as ledger:
        model = models.build(models.GPT, size, checkpointing=checkpointing, config=config if early else None)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for step in range(steps):
            with Traffic() as traffic:
                rows = own_rows(step, engine.device, engine.train_batch_size())
                losses.append(one_step(engine, ledger, rows, after_forward, look=step == steps - 1))
    found = {"losses": losses, "weights": weights_of(model), "traffic": traffic}
    if not engine.bfloat16_enabled():
        found["gradients"] = gradients_of(model, engine.optimizer)
    found["moments"] = {snapshot.moment: snapshot for snapshot in ledger.snapshots}
    return found | {
        "history": ledger.history("after backward", "after step"),
        "whole history": ledger.history("start", "after step"),
    }


def train_each(configs: Mapping[str, dict], **options: object) -> dict[str, dict]:
    """{name: `train(config, **options)`} of several configurations, one after the other in the same ranks."""
    found = {}
    for name, config in configs.items():
        found[name] = train(config, **options)
        gc.collect()
        # DeepSpeed keeps something of every engine, which each later look for garbage would go through again
        gc.freeze()
    return found


def train_plain(
    wrap: Callable[[torch.nn.Module], Callable[..., torch.Tensor]],
    size: models.GPTSize = models.TINY,
    model: Callable[[models.GPTSize], torch.nn.Module] = models.GPT,
    sequences: int = SEQUENCES,
) -> dict:
    """The training by torch alone, in a rank, with AdamW in one micro-batch per step.

    Args:
        wrap: function of the model, on its device, that returns what is called with a batch: the same model
            with `fully_shard` applied to it, or one around it as `DistributedDataParallel`.
        size, model: what is trained, `model(size)`.
        sequences: of a step, over all ranks.

    Returns:
        As `train`, with snapshots of the last step's MOMENTS of one micro-batch and "after forward".
    """
    import deepspeed

    deepspeed.init_distributed()
    losses, device = [], deepspeed.get_accelerator().current_device_name()
    with Ledger() as ledger:
        built = models.build(model, size).to(device)
        called = wrap(built)
        adam = torch.optim.AdamW(built.parameters(), lr=1e-3)
        ledger.watch(built, adam)
        for step in range(STEPS):
            note = ledger.snapshot if step == STEPS - 1 else ledger.mark
            note("start")
            with Traffic() as traffic:
                ledger.mark("forward")
                loss = called(*own_rows(step, device, sequences))
                note("after forward")
                ledger.mark("backward")
                loss.backward()
                losses.append(loss.item())
                del loss
                note("after backward")
                ledger.mark("step")
                adam.step()
                adam.zero_grad()
            note("after step")
    found = {"losses": losses, "weights": weights_of(built), "gradients": gradients_of(built, adam)}
    found["traffic"] = traffic
    found["moments"] = {snapshot.moment: snapshot for snapshot in ledger.snapshots}
    return found | {
        "history": ledger.history("after backward", "after step"),
        "whole history": ledger.history("start", "after step"),
    }


def zero_2_by_hand(
    step: Callable[[int, SimpleNamespace], float],
    reduce_bucket: Callable[[dict[int, torch.Tensor], torch.Tensor], None],
    release_by_bucket: Callable[
        [list[torch.nn.Parameter], int, Callable[[dict[int, torch.Tensor]], None]], Callable[[], None]
    ],
    dtype: torch.dtype,
    bucket_size: int = 10_000,
) -> dict:
    """The training by lesson 08's own ZeRO-2, in a rank.

    Args:
        step: function of the step's number and the *job* below, that makes one optimizer step; returns the
            loss.
        reduce_bucket: function of a bucket and `job.own`, as the lesson has it.
        release_by_bucket: function of parameters, bucket size and what reduces a bucket; what it returns is
            `job.flush`.
        dtype: of the model.
        bucket_size: elements.

    The job has `model`, on the rank's device; `flat`, of shape (N * S,), of which its parameters are views;
    `master`, of shape (S,), fp32, this rank's shard, and `adam`, its AdamW; `own`, of shape (S,), zeros in
    `dtype`, for the shard of the gradients; `flush`; `buckets`, a list to which {where a gradient begins: its
    elements} of each reduced bucket is appended, which a step may clear; and `ledger`.

    Returns:
        {"losses": of this rank, "weights": a tensor, and of the last step "traffic": a `Traffic`, "held": the
        job's `held` as the step left it, "buckets": the job's, "history": the `History` of its passes and its
        update}.
    """
    losses = []
    with Ledger() as ledger:
        job = _states_of(dtype, ledger)

        def reduce(bucket):
            job.buckets.append({start: len(gradient) for start, gradient in bucket.items()})
            reduce_bucket(bucket, job.own)

        job.flush = release_by_bucket(list(job.model.parameters()), bucket_size, reduce)
        for number in range(STEPS):
            with Traffic() as traffic:
                losses.append(step(number, job))
    found = {
        "losses": losses,
        **learned(job.model, job.adam, job.master),
        "traffic": traffic,
        "held": job.held,
        "buckets": job.buckets,
    }
    return found | {"history": ledger.history("start", "after step")}


def _states_of(dtype, ledger):
    """The job of `zero_2_by_hand` before its first step; `ledger` watches the model and Adam, and knows the
    rest by category."""
    from types import SimpleNamespace

    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    model = models.build(models.GPT).to(deepspeed.get_accelerator().current_device_name(), dtype)
    flat = flatten(list(model.parameters()), comm.get_world_size())
    shard = flat.chunk(comm.get_world_size())[comm.get_rank()]
    master, own = torch.nn.Parameter(shard.float().clone()), torch.zeros_like(shard)
    adam = torch.optim.AdamW([master], lr=1e-3)
    ledger.watch(model, adam)
    ledger.label("master weights", master)
    ledger.label("gradients", own)
    return SimpleNamespace(
        model=model, flat=flat, master=master, adam=adam, own=own, buckets=[], held=None, ledger=ledger
    )


def coalesced(config: dict, micro_batches: int) -> dict:
    """The training by DeepSpeed where gradients stay on each rank until a step's last micro-batch
    (`engine.coalesce_grad_reduction`).

    Args:
        config: DeepSpeed's configuration, a dict, of one micro-batch in a step: the loop divides the loss.
        micro_batches: in each step.

    Returns:
        {"losses": of this rank, "weights": a tensor, and of the last step "traffic": a `Traffic`, "held": a
        `Snapshot` before the reduction}.
    """
    import deepspeed

    found = {"losses": []}
    with Ledger() as ledger:
        model = models.build(models.GPT)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for step in range(STEPS):
            rows, losses = own_rows(step, engine.device), []
            with Traffic() as found["traffic"]:
                with engine.coalesce_grad_reduction():
                    for micro_batch in zip(*(part.chunk(micro_batches) for part in rows)):
                        losses.append(engine(*micro_batch) / micro_batches)
                        engine.backward(losses[-1])
                    found["held"] = ledger.snapshot("before the reduction")
                engine.step()
            found["losses"].append(sum(loss.item() for loss in losses))
    return found | {"weights": weights_of(model), "gradients": gradients_of(model, engine.optimizer)}


def same_answer(reports: Sequence[Mapping], right: Mapping, tolerance: float = 1e-4) -> dict[str, str]:
    """A table's row on ranks' "losses", "weights" and "gradients": their mean losses, whether all weights are
    equal, and whether all is one process's answer; gradients in units of the largest one."""
    losses = [sum(step) / len(reports) for step in zip(*(report["losses"] for report in reports))]
    off = [abs(mine - other) for mine, other in zip(losses, right["losses"])]
    for report in reports:
        off.append((report["weights"] - right["weights"]).abs().max().item())
        if right["gradients"] is not None:
            distance = (report["gradients"] - right["gradients"]).abs().max()
            off.append((distance / right["gradients"].abs().max()).item())
    equal = all(report["weights"].equal(reports[0]["weights"]) for report in reports)
    shown = {"losses": " ".join(f"{loss:.3g}" for loss in losses)}
    shown["ranks' weights equal"] = "yes" if equal else "no"
    return shown | {f"one process's answer within {tolerance}": "yes" if max(off) < tolerance else "no"}
