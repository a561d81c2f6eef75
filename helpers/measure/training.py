"""A small training that is counted: three steps of the course's GPT, what a rank holds at the moments of a step, and what it sends.

Lessons run it in ranks, beside the technique that a learner has written.  All train on the same eight sequences of 32 tokens per step, so that
their answers can be compared with those of one process, whatever the number of ranks.
"""

from __future__ import annotations

from helpers import corpus, models
from helpers.measure.ledger import Ledger
from helpers.measure.traffic import Traffic

SEQUENCES, LENGTH, STEPS = 8, 32, 3  # sequences of a step, over all ranks; tokens of each; optimizer steps
MOMENTS = ("between micro-batches", "after backward", "after step")


def own_rows(step, device):
    """This rank's rows of a step's sequences: token ids and targets, each of shape (SEQUENCES / ranks, LENGTH)."""
    import deepspeed.comm as comm

    return corpus.batch(step, SEQUENCES, LENGTH, comm.get_rank(), comm.get_world_size(), device)


def backward(model, rows):
    """One forward and one backward pass; the loss, a number."""
    loss = model(*rows)
    loss.backward()
    return loss.item()


def weights_of(model):
    """All parameters in one fp32 tensor on the CPU, in the model's order."""
    import torch

    return torch.cat([parameter.detach().float().flatten().cpu() for parameter in model.parameters()])


def in_one_process(make):
    """The training without ranks, in fp32, with an optimizer from `make(parameters, lr=)`: {"losses", "weights"}, which others are held against."""
    model, losses = models.build(models.GPT), []
    optimizer = make(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        losses.append(backward(model, corpus.batch(step, SEQUENCES, LENGTH)))
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "weights": weights_of(model)}


def one_step(engine, ledger, rows):
    """Two micro-batches and a step of a DeepSpeed engine, with a snapshot at each of `MOMENTS` and before ("start"); the mean loss."""
    total = 0.0
    ledger.snapshot("start")
    for moment, (ids, targets) in zip(MOMENTS, zip(*(part.chunk(2) for part in rows))):
        ledger.mark("forward")
        loss = engine(ids, targets)
        ledger.mark("backward")
        engine.backward(loss)
        total += loss.item() / 2
        del loss
        ledger.snapshot(moment)
        if moment == "after backward":
            ledger.mark("step")
        engine.step()
    ledger.snapshot("after step")
    return total


def train(config):
    """The training by DeepSpeed, in a rank.

    Args:
        config: DeepSpeed's configuration, a dict; it must ask for two micro-batches, SEQUENCES / (2 x ranks) sequences each.

    Returns:
        {"losses": of this rank, "weights": a tensor, and of the last step "traffic": a `Traffic`, "moments": {moment: `Snapshot`}, "history": the
        `History` of its optimizer step}.
    """
    import deepspeed

    losses = []
    with Ledger() as ledger:
        model = models.build(models.GPT)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for step in range(STEPS):
            with Traffic() as traffic:
                losses.append(one_step(engine, ledger, own_rows(step, engine.device)))
    found = {"losses": losses, "weights": weights_of(model), "traffic": traffic}
    found["moments"] = {snapshot.moment: snapshot for snapshot in ledger.snapshots}
    return found | {"history": ledger.history("after backward", "after step")}


def train_each(configs):
    """{name: `train(config)`} of several configurations, one after the other in the same ranks."""
    return {name: train(config) for name, config in configs.items()}


def same_answer(reports, right, tolerance=1e-4):
    """A table's row on ranks' "losses" and "weights": their mean losses, whether all weights are equal, and whether all is one process's answer."""
    losses = [sum(step) / len(reports) for step in zip(*(report["losses"] for report in reports))]
    off = max(abs(mine - other) for mine, other in zip(losses, right["losses"]))
    off = max(off, *((report["weights"] - right["weights"]).abs().max().item() for report in reports))
    equal = all(report["weights"].equal(reports[0]["weights"]) for report in reports)
    shown = {"losses": " ".join(f"{loss:.3g}" for loss in losses)}
    shown["ranks' weights equal"] = "yes" if equal else "no"
    return shown | {f"one process's answer within {tolerance}": "yes" if off < tolerance else "no"}
