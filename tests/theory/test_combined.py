"""Ranks of several axes against DeepSpeed's topology, bytes over a cable by hand, and what ranks of a
tensor-parallel pipeline hold, measured."""

from math import prod

import pytest
import torch
from helpers import corpus, launch, models, theory
from helpers.course.models import GPTSize
from helpers.course.models.tensor_parallel import TensorBlock
from tests.support import configuration

SHAPES = [
    {"pipe": 2, "data": 2, "model": 2},
    {"model": 2, "data": 3, "pipe": 4},
    {"data": 5},
    {"data": 1, "pipe": 3},
]


@pytest.mark.parametrize("axes", SHAPES, ids=str)
def test_ranks_are_where_deepspeeds_topology_has_them(axes):
    from deepspeed.runtime.pipe.topology import ProcessTopology

    topology = ProcessTopology(axes=list(axes), dims=list(axes.values()))
    for rank in range(prod(axes.values())):
        assert theory.coordinates(rank, axes) == topology.get_coord(rank)._asdict()
    for name in axes:
        assert theory.groups_along(name, axes) == (
            topology.get_axis_comm_lists(name) or [[rank] for rank in range(prod(axes.values()))]
        )


def test_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="a rank of these axes must be from 0 to 3, not 4"):
        theory.coordinates(4, {"data": 4})
    with pytest.raises(ValueError, match="no axis 'pipe': there are data"):
        theory.groups_along("pipe", {"data": 4})


def crossing(axes, each):
    return {
        name: theory.cable_bytes(theory.groups_along(name, axes), 10, each, line=name == "pipe")
        for name in axes
    }


def test_only_the_outermost_axis_crosses_between_two_machines():
    assert crossing({"pipe": 2, "data": 2, "model": 2}, 4) == {"pipe": 80, "data": 0, "model": 0}
    assert crossing({"pipe": 2, "data": 2, "model": 2}, 2) == {"pipe": 80, "data": 80, "model": 0}
    assert sum(crossing({"pipe": 2, "data": 2, "model": 2}, 8).values()) == 0


def test_a_ring_is_closed_and_a_pipeline_is_a_line():
    assert crossing({"data": 4}, 1) == {"data": 40} and crossing({"pipe": 4}, 1) == {"pipe": 60}
    assert crossing({"data": 4}, 2) == {"data": 20} and crossing({"pipe": 4}, 2) == {"pipe": 20}


def test_a_rank_sends_along_each_axis_what_its_parts_are_by_hand():
    size, e = GPTSize(300, 32, 96, 4, 4), 2
    activation, micro_batches = e * 2 * 16 * 96, 8
    sent = theory.sent_by_axis(
        {"data": 2, "pipe": 2, "model": 4}, size, 2, 16, micro_batches, e, elements=1000
    )
    assert sent["pipe"] == 4 * activation / 4  # 4 micro-batches of this replica, a part of each activation
    assert sent["data"] == 2 * (1 / 2) * e * 1000  # gradients and parameters
    blocks, gathers = (
        2 * 4 * 2 * (3 / 4) * activation,
        3 / 2 * (3 / 4) * activation,
    )  # of two blocks; of one boundary, the mean of two stages
    assert sent["model"] == 4 * (blocks + gathers)


def test_axes_of_one_rank_send_nothing_and_a_rank_has_its_part_of_the_model():
    size = GPTSize(300, 32, 96, 4, 4)
    alone = {"pipe": 1, "data": 1, "model": 1}
    sent = theory.sent_by_axis(alone | {"pipe": 2}, size, 1, 16, 4, 4)
    assert sent == {"pipe": 4 * 4 * 16 * 96, "data": 0, "model": 0}
    sent = theory.sent_by_axis(alone | {"data": 2, "pipe": 2}, size, 1, 16, 4, 4, whole_buckets=True)
    assert sent["data"] == 3 / 2 * 4 * theory.gpt_parameters(size) / 2 and sent["model"] == 0


BATCH, LENGTH, MICRO_BATCHES = 2, 16, 4
SIZE = GPTSize(300, 32, 96, 4, 4)


def hold(axes, bf16):
    """In a rank: bytes of activations and inputs after the last forward pass of a step, its coordinates,
    model states beside theory's."""
    import contextlib
    import io

    import deepspeed
    import deepspeed.comm as comm
    from deepspeed.pipe import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.topology import ProcessTopology
    from helpers.course.runs.steps import trained_pipeline

    deepspeed.init_distributed()
    rank, mine = comm.get_rank(), theory.coordinates(comm.get_rank(), axes)
    groups = {tuple(ranks): comm.new_group(ranks) for ranks in theory.groups_along("model", axes)}
    group = next(group for ranks, group in groups.items() if rank in ranks)
    config = configuration(
        1, bf16=bf16, micro_batch=BATCH, accumulation=MICRO_BATCHES, extra={"gradient_clipping": 0.0}
    )

    def engine():
        block = LayerSpec(TensorBlock, SIZE, mine["model"], axes["model"], group)
        layers = [LayerSpec(models.Embedding, SIZE), *[block] * SIZE.layers, LayerSpec(models.Head, SIZE)]
        topology = ProcessTopology(axes=list(axes), dims=list(axes.values()))
        with contextlib.redirect_stdout(io.StringIO()):
            model = PipelineModule(
                layers, topology=topology, loss_fn=models.NextTokenLoss(), partition_method="uniform"
            )
        return deepspeed.initialize(model=model, config=config)[0]

    def batches(engine, step):
        rows = corpus.batch(step, BATCH * MICRO_BATCHES * axes["data"], LENGTH, mine["data"], axes["data"])
        return ((ids, targets.clone()) for ids, targets in zip(*(part.split(BATCH) for part in rows)))

    report = trained_pipeline(engine, batches, steps=2)
    held = report["held"]
    exact = theory.deepspeed_bytes(report["elements"], config, ranks=axes["data"], rank=mine["data"])
    blocks = sum(isinstance(one, TensorBlock) for one in report["engine"].module.forward_funcs)
    return (
        held["activations"] + held["inputs"],
        mine,
        blocks,
        {name: held[name] - exact[name] for name in exact},
    )


@pytest.mark.ranks
@pytest.mark.parametrize(
    "axes, bf16",
    [({"model": 2, "pipe": 2, "data": 1}, True), ({"pipe": 3, "data": 1, "model": 2}, False)],
    ids=str,
)
def test_a_rank_of_a_tensor_parallel_pipeline_to_the_byte(axes, bf16):
    for held, mine, blocks, states_off in launch(
        hold, prod(axes.values()), {"axes": axes, "bf16": bf16}, device="cpu"
    ):
        where = {
            "blocks": blocks,
            "stages": axes["pipe"],
            "stage": mine["pipe"],
            "micro_batches": MICRO_BATCHES,
            "ranks": axes["model"],
        }
        assert held == theory.tensor_pipeline_held_bytes(SIZE, BATCH, LENGTH, 2 if bf16 else 4, **where), mine
        assert {name: off for name, off in states_off.items() if off and name != "other"} == {}


def test_alone_in_its_tensor_group_a_rank_holds_what_a_pipelines_rank_does():
    case = SIZE, BATCH, LENGTH, 4, 2, 2, 0, MICRO_BATCHES
    assert theory.tensor_pipeline_held_bytes(*case, ranks=1) == theory.pipeline_held_bytes(*case)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_sharded_block_has_its_parameters_and_marks_those_that_are_sharded(rank):
    block = TensorBlock(SIZE, rank, 2, None)
    assert sum(
        parameter.numel() for parameter in block.parameters()
    ) == theory.tensor_parallel_block_parameters(SIZE.width, 2)
    torch.manual_seed(0)
    complete = models.Block(SIZE)
    for name, parameter in block.named_parameters():
        assert getattr(parameter, "model_parallel", False) == (
            parameter.shape != complete.get_parameter(name).shape
        )
    with pytest.raises(ValueError, match="3 ranks cannot share 4 heads"):
        TensorBlock(SIZE, 0, 3, None)
