"""Logged, ideal and sent bytes against each other, where they must agree and where they must not."""

import pytest
from helpers import launch, models, theory
from helpers.tools.measure.traffic import Traffic
from tests.support import configuration

pytestmark = pytest.mark.ranks

ELEMENTS = 1 << 18
FRAME = 48  # bytes that gloo puts before each message


def library(plain):
    """What sends: torch.distributed, where a program knows nothing of DeepSpeed, or DeepSpeed's
    communication."""
    if plain:
        import torch.distributed as comm

        comm.init_process_group("gloo")
        return comm
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    return comm


def collectives(plain):
    """Traffic of one collective each on a tensor of ELEMENTS fp32 numbers, after a first call that opens the
    connections."""
    import torch

    comm = library(plain)
    ranks, found = comm.get_world_size(), {}
    whole, part = torch.ones(ELEMENTS), torch.ones(ELEMENTS // ranks)
    calls = {
        "all_reduce": lambda: comm.all_reduce(whole),
        "all_gather_into_tensor": lambda: comm.all_gather_into_tensor(whole, part),
        "reduce_scatter_tensor": lambda: comm.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: comm.broadcast(whole, 0),
    }
    for name, call in calls.items():
        for _ in range(2):
            comm.barrier()
            with Traffic() as traffic:
                call()
        found[name] = traffic
    return found


@pytest.fixture(scope="module", params=[(2, False), (4, False), (2, True)], ids=str)
def measured(request):
    ranks, plain = request.param
    return ranks, launch(collectives, ranks=ranks, arguments={"plain": plain}, device="cpu")


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather_into_tensor"])
def test_sent_is_ideal_where_gloo_is_optimal(measured, operation):
    ranks, reports = measured
    for found in reports:
        (ideal,) = found[operation].ideal.values()
        overhead = found[operation].sent - ideal
        assert 0 < overhead < 0.002 * ideal and overhead % FRAME == 0


def test_gloos_reduce_scatter_sends_as_much_as_an_all_reduce(measured):
    ranks, reports = measured
    for found in reports:
        assert found["reduce_scatter_tensor"].sent == found["all_reduce"].sent
        assert (
            found["reduce_scatter_tensor"].ideal["reduce_scatter_tensor"] * 2
            == found["all_reduce"].ideal["all_reduce"]
        )


def test_a_broadcast_sends_the_tensor_once_for_every_other_rank(measured):
    ranks, reports = measured
    sent = sum(found["broadcast"].sent for found in reports)
    ideal = sum(found["broadcast"].ideal["broadcast"] for found in reports)
    assert ideal == (ranks - 1) * 4 * ELEMENTS
    assert 0 <= sent - ideal < 0.002 * ideal


def test_logged_is_what_was_handed_in(measured):
    ranks, reports = measured
    for found in reports:
        assert found["all_reduce"].logged == {"all_reduce": 4 * ELEMENTS}
        assert found["all_gather_into_tensor"].logged == {"all_gather_into_tensor": 4 * ELEMENTS // ranks}


def zero_1_step():
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus

    config = configuration(1, reduce_bucket_size=50_000)
    model = models.build(models.GPT)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in range(2):
        batch = corpus.batch(step, comm.get_world_size(), 32, comm.get_rank(), comm.get_world_size())
        with Traffic() as traffic:
            engine.backward(engine(*batch))
            engine.step()
    return traffic


def test_a_zero_1_step_sends_three_times_the_parameters_and_not_the_papers_two():
    """DeepSpeed all-reduces whole buckets at stage 1 and all-gathers the updated weights: 2 + 1, times (N -
    1) / N."""
    ranks, size = 2, 2 * theory.gpt_parameters(models.TINY)
    for traffic in launch(zero_1_step, ranks=ranks, device="cpu"):
        small = 5  # overflow flag and norm
        assert traffic.logged == {"all_reduce": size + small, "all_gather_into_tensor": size // ranks}
        ideal = sum(traffic.ideal.values())
        assert ideal == theory.wire_bytes("all_reduce", size + small, ranks) + theory.wire_bytes(
            "all_gather", size, ranks
        )
        assert 1 <= traffic.sent / ideal < 1.02


def count_too_early():
    with Traffic():
        pass


def test_counting_before_ranks_have_met_is_refused():
    with pytest.raises(RuntimeError, match="init_distributed"):
        launch(count_too_early, ranks=1)


def nested():
    """An outer and an inner count, and what DeepSpeed's logger does afterwards."""
    import deepspeed
    import deepspeed.comm as comm
    import torch

    deepspeed.init_distributed()
    tensor, logger = torch.ones(ELEMENTS), comm.comm.comms_logger
    with Traffic() as outer:
        comm.all_reduce(tensor)
        with Traffic() as inner:
            comm.all_reduce(tensor)
        comm.broadcast(tensor, 0)
    comm.barrier()
    return outer, inner, logger.enabled, "append" in vars(logger)


def test_a_count_within_a_count_counts_for_both():
    for outer, inner, enabled, replaced in launch(nested, ranks=2, device="cpu"):
        assert inner.logged == {"all_reduce": 4 * ELEMENTS}
        assert outer.logged == {"all_reduce": 8 * ELEMENTS, "broadcast": 4 * ELEMENTS}
        assert outer.sent > inner.sent > 0
        assert not enabled and not replaced


def in_pairs(plain):
    """An all-reduce among two of four ranks, then one among all."""
    import torch

    comm = library(plain)
    pairs = [comm.new_group([0, 1]), comm.new_group([2, 3])]
    tensor = torch.ones(ELEMENTS)
    with Traffic() as traffic:
        comm.all_reduce(tensor, group=pairs[comm.get_rank() // 2])
        comm.all_reduce(tensor)
    return traffic


@pytest.mark.parametrize("plain", [False, True])
def test_a_message_within_a_group_is_counted_for_the_group(plain):
    for traffic in launch(in_pairs, ranks=4, arguments={"plain": plain}, device="cpu"):
        assert [(message.ranks, message.count) for message in traffic.messages] == [(2, 1), (4, 1)]
        assert traffic.messages[1].group == (0, 1, 2, 3)
        assert traffic.ideal["all_reduce"] == sum(
            theory.wire_bytes("all_reduce", 4 * ELEMENTS, ranks) for ranks in (2, 4)
        )


def along_three_ways(plain):
    """Messages of one size in two groups of two ranks each, and from each rank to the next."""
    import torch

    comm = library(plain)
    rank, ranks, tensor = comm.get_rank(), comm.get_world_size(), torch.ones(8)
    rows, columns = (
        [comm.new_group(ranks) for ranks in lists] for lists in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    )
    with Traffic() as traffic:
        comm.all_reduce(tensor, group=rows[rank // 2])
        comm.all_reduce(tensor, group=columns[rank % 2])
        for turn in (0, 1):  # the even ranks send first
            comm.send(tensor, (rank + 1) % ranks) if rank % 2 == turn else comm.recv(
                tensor, (rank - 1) % ranks
            )
    return traffic


@pytest.mark.parametrize("plain", [False, True])
def test_messages_of_one_size_are_told_apart_by_the_ranks_that_take_part(plain):
    for rank, traffic in enumerate(
        launch(along_three_ways, ranks=4, arguments={"plain": plain}, device="cpu")
    ):
        found = {(one.operation, one.group): one.count for one in traffic.messages}
        row, column = tuple(sorted((rank, rank ^ 1))), tuple(sorted((rank, rank ^ 2)))
        expected = {
            ("all_reduce", row): 1,
            ("all_reduce", column): 1,
            ("send", tuple(sorted((rank, (rank + 1) % 4)))): 1,
        }
        expected["recv", tuple(sorted((rank, (rank - 1) % 4)))] = 1
        assert found == expected
        assert traffic.ideal == {"all_reduce": 2 * 32, "send": 32}


def fsdp_step(size):
    """The traffic of a third step of torch's fully_shard in fp32: each block a group of parameters, and all
    others one."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from helpers import corpus

    comm = library(plain=True)
    model = models.build(models.GPT, size)
    for part in (*model.blocks, model):
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with Traffic() as traffic:
            model(*corpus.batch(0, 2, 16)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return traffic, sum(parameter.numel() for parameter in model.parameters()), comm.get_world_size()


def test_torchs_fully_sharded_data_parallelism_sends_each_parameter_twice_and_its_gradient_once():
    """What does not belong to a block stays gathered from the forward to the backward pass (arXiv 2304.11277,
    section 3.3.1)."""
    size = models.TINY
    for traffic, elements, ranks in launch(fsdp_step, ranks=2, arguments={"size": size}, device="cpu"):
        (gathered,), (scattered,) = (
            [found for name, found in traffic.logged.items() if name.startswith(kind)]
            for kind in ("all_gather", "reduce_scatter")
        )
        blocks = size.layers * (12 * size.width**2 + 13 * size.width)
        assert gathered == 4 * (elements + blocks) // ranks
        assert scattered == 4 * elements
        assert sum(traffic.ideal.values()) < traffic.sent


def zero_steps(stage, accumulation, whole_buckets):
    """The traffic of a third step under ZeRO, with nothing cached."""
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus

    no_cache = (
        "max_live_parameters",
        "max_reuse_distance",
        "prefetch_bucket_size",
        "param_persistence_threshold",
    )
    zero = {
        "reduce_bucket_size": 50_000,
        "use_multi_rank_bucket_allreduce": whole_buckets,
        **{f"stage3_{name}": 0 for name in no_cache},
    }
    config = configuration(stage, accumulation=accumulation, **zero)
    model = models.build(models.GPT)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    ranks = comm.get_world_size()
    for step in range(3):
        with Traffic() as traffic:
            for micro in range(accumulation):
                engine.backward(
                    engine(*corpus.batch(step * accumulation + micro, ranks, 16, comm.get_rank(), ranks))
                )
                engine.step()
    return traffic


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(
    "stage, whole_buckets", [(0, True), (1, True), (1, False), (2, True), (2, False), (3, True)]
)
def test_zero_sends_what_theory_says(stage, accumulation, whole_buckets):
    ranks, size = 2, theory.gpt_parameters(models.TINY)
    arguments = {"stage": stage, "accumulation": accumulation, "whole_buckets": whole_buckets}
    traffic = launch(zero_steps, ranks=ranks, arguments=arguments, device="cpu")[0]
    expected = theory.zero_wire_bytes(size, ranks, stage, 2, accumulation, whole_buckets)
    table = models.TINY.vocabulary * models.TINY.width
    if stage == 3:  # the token table is also the head: gathered twice more
        expected += accumulation * 2 * theory.wire_bytes("all_gather", 2 * table, ranks)
    small = sum(
        message.count * theory.wire_bytes("all_reduce", message.bytes, ranks)
        for message in traffic.messages
        if message.bytes < 16
    )
    assert sum(traffic.ideal.values()) - small == expected
