"""One kind of parallelism beside a stage of ZeRO, on four ranks: the configuration, the engine, and a step on
the same eight sequences.

Ranks that share a model are pairs of neighbours: tensor-parallel ones by DeepSpeed's AutoTP with the rules of
lesson 05, two stages, or two that share each sequence (`models.share_sequence`, lesson 13).  With "data" each
of the four is a replica.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from helpers.course import corpus, models
from helpers.course.training.comparable import LENGTH, SEQUENCES
from helpers.tools import theory

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

WAYS = ("data", "tensor", "pipeline", "sequence")
PIPES, PAIRS = {"pipe": 2, "data": 2, "model": 1}, {"data": 2, "sequence": 2}


def configuration(way: str, stage: int) -> dict:
    """DeepSpeed's configuration.  Plain SGD: Adam divides each gradient by its own size, and would hide a
    wrong factor."""
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}; not {way!r}")
    config = {
        "train_micro_batch_size_per_gpu": SEQUENCES // (4 if way == "data" else 2),
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 50_000},
    }
    if way == "tensor":
        config["tensor_parallel"] = {"autotp_size": 2, "partition_config": models.AUTOTP_RULES}
    return config


def engine(way: str, config: dict) -> DeepSpeedEngine:
    """DeepSpeed's engine of one of `WAYS`, in each of four ranks; raises what DeepSpeed raises where it
    refuses."""
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.utils.logger.setLevel("ERROR")  # it warns that SGD was never tested with ZeRO
    deepspeed.init_distributed()
    model = _pipeline() if way == "pipeline" else models.Untied(models.TINY)
    if way == "sequence":
        groups = [comm.new_group(ranks) for ranks in theory.groups_along("sequence", PAIRS)]
        place = theory.coordinates(comm.get_rank(), PAIRS)
        models.share_sequence(model.layers, groups[place["data"]], place["sequence"])
    parameters = None if way == "pipeline" else model.parameters()
    return deepspeed.initialize(model=model, model_parameters=parameters, config=config)[0]


def _pipeline():
    """The layers of `models.Untied` as two stages, without what DeepSpeed prints of them."""
    from deepspeed.pipe import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.topology import ProcessTopology

    kinds = (models.Embedding, *[models.Block] * models.TINY.layers, models.Head)
    layers = [LayerSpec(kind, models.TINY) for kind in kinds]
    topology = ProcessTopology(axes=list(PIPES), dims=list(PIPES.values()))
    seeds = {"seed_layers": True, "base_seed": 0, "seed_fn": lambda seed: torch.manual_seed(int(seed))}
    with contextlib.redirect_stdout(io.StringIO()):
        return PipelineModule(
            layers, topology=topology, loss_fn=models.NextTokenLoss(), partition_method="uniform", **seeds
        )


def step(way: str, engine: DeepSpeedEngine, number: int) -> float:
    """Train on the `number`-th eight sequences; returns the loss of this rank's part, whose mean over the
    ranks is that of all."""
    rank = engine.global_rank
    if way == "pipeline":
        rows = corpus.batch(number, SEQUENCES, LENGTH, engine.grid.get_data_parallel_id(), 2)
        return engine.train_batch(data_iter=iter([rows])).item()
    replica, replicas = (rank, 4) if way == "data" else (rank // 2, 2)
    rows = corpus.batch(number, SEQUENCES, LENGTH, replica, replicas)
    if way == "sequence":
        rows = [part.chunk(2, 1)[rank % 2] for part in rows]  # this rank's tokens
    loss = engine(*rows)
    engine.backward(loss)
    engine.step()
    return loss.item()


def losses(way: str, stages: Iterable[int] = (0, 1, 2, 3)) -> dict[int, list[float] | str]:
    """{stage: losses of two steps on this rank, or in words what DeepSpeed refuses}."""
    reports = {}
    for stage in stages:
        try:
            trained = engine(way, configuration(way, stage))
            reports[stage] = [step(way, trained, number) for number in range(2)]
        except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
            reports[stage] = f"{type(error).__name__}: {error}"
    return reports
