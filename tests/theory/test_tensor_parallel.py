"""Parameters, activations and model states of tensor-parallel ranks: predicted, then measured in DeepSpeed
jobs, to the byte."""

import pytest
from helpers import launch, models, theory
from helpers.course.models import GPTSize
from tests.support import configuration

BATCH, LENGTH = 2, 16
SIZES = {"tiny": models.TINY, "wide": GPTSize(300, 32, 96, 2, 4)}


def tensor_configuration(tensor_ranks, stage, dtype):
    extra = {"tensor_parallel": {"autotp_size": tensor_ranks, "partition_config": models.AUTOTP_RULES}}
    return configuration(stage, bf16=dtype == "bf16", micro_batch=BATCH, accumulation=2, extra=extra)


def hold(size, tensor_ranks, stage, dtype):
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus
    from helpers.tools.measure.ledger import Ledger

    config = tensor_configuration(tensor_ranks, stage, dtype)
    deepspeed.init_distributed()
    replica, replicas = comm.get_rank() // tensor_ranks, comm.get_world_size() // tensor_ranks
    with Ledger() as ledger:
        model = models.build(models.GPT, size)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for micro in range(4):
            loss = engine(*corpus.batch(micro, BATCH * replicas, LENGTH, replica, replicas, engine.device))
            kept = ledger.snapshot("after forward")
            engine.backward(loss)
            del loss
            if micro % 2 == 0:
                between = ledger.snapshot("between micro-batches")
            engine.step()
    assert kept.settled and between.settled
    return (
        kept["activations"],
        between.categories,
        [getattr(parameter, "ds_numel", parameter.numel()) for parameter in engine.module.parameters()],
    )


@pytest.mark.ranks
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "ranks, tensor_ranks, stage, dtype",
    [(2, 2, 0, "bf16"), (4, 4, 0, "fp32"), (4, 2, 1, "bf16"), (4, 2, 2, "fp32")],
)
def test_tensor_parallel_ranks_to_the_byte(size, ranks, tensor_ranks, stage, dtype):
    size, element = SIZES[size], {"bf16": 2, "fp32": 4}[dtype]
    reports = launch(
        hold,
        ranks=ranks,
        arguments={"size": size, "tensor_ranks": tensor_ranks, "stage": stage, "dtype": dtype},
        device="cpu",
    )
    for rank, (activations, states, elements) in enumerate(reports):
        assert sum(elements) == theory.tensor_parallel_parameters(size, tensor_ranks)
        assert activations == theory.tensor_parallel_activation_bytes(
            size, BATCH, LENGTH, element, tensor_ranks
        )
        replicas, replica = ranks // tensor_ranks, rank // tensor_ranks
        exact = theory.deepspeed_bytes(
            elements, tensor_configuration(tensor_ranks, stage, dtype), ranks=replicas, rank=replica
        )
        assert {category: states[category] for category in exact} == exact


@pytest.mark.parametrize("width, heads", [(64, 4), (12288, 96)])
def test_one_rank_is_the_whole_block(width, heads):
    assert theory.tensor_parallel_block_parameters(width, 1) == theory.block_parameters(width)
    for element in (2, 4):
        whole = theory.block_activation_bytes(1, 128, width, heads, element)
        assert theory.tensor_parallel_block_activation_bytes(1, 128, width, heads, element, 1) == whole


def test_four_of_sixteen_are_whole():
    """Korthikanti et al., arXiv 2205.05198, equation 2, without its dropout masks (10 - 2) and with the fused
    kernel."""
    batch, sequence, width, heads, ranks = 1, 2048, 12288, 96, 8
    ebsh = 2 * batch * sequence * width
    bytes_per_rank = theory.tensor_parallel_block_activation_bytes(batch, sequence, width, heads, 2, ranks)
    statistics = 8 * batch * sequence + 4 * heads * batch * sequence // ranks
    assert bytes_per_rank == (4 + 12 / ranks) * ebsh + statistics


def test_a_divided_vocabulary_leaves_only_what_every_rank_repeats():
    size, ranks = models.GPT3, 8
    repeated = ranks * theory.tensor_parallel_parameters(
        size, ranks, vocabulary_parallel=False
    ) - theory.gpt_parameters(size)
    assert repeated == (ranks - 1) * (
        (size.vocabulary + size.context + 2) * size.width + size.layers * 6 * size.width
    )


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_width_that_does_not_divide_is_refused(ranks):
    with pytest.raises(ValueError, match="cannot be divided"):
        theory.tensor_parallel_parameters(models.TINY, ranks)


def test_megatrons_four_all_reduces():
    assert theory.tensor_parallel_wire_bytes(2, 32, 64, 4, 2, 4) == 4 * 4 * theory.wire_bytes(
        "all_reduce", 2 * 2 * 32 * 64, 4
    )
    assert theory.tensor_parallel_wire_bytes(2, 32, 64, 4, 2, 1) == 0


def test_with_sequence_parallelism_everything_is_shared():
    """Korthikanti et al., arXiv 2205.05198, equation 4: all of a block's activations divided by t."""
    for ranks in (1, 2, 8):
        exact = theory.sequence_parallel_block_activation_bytes(1, 2048, 12288, 96, 2, ranks)
        assert exact * ranks == theory.block_activation_bytes(1, 2048, 12288, 96, 2)
    with pytest.raises(ValueError, match="use a multiple of the ranks"):
        theory.sequence_parallel_block_activation_bytes(1, 30, 64, 4, 2, 4)


MACHINE = theory.MachineConstants(
    matrix={"bf16": {512: 1e14}},
    memory=1e12,
    launch=0.0,
    latency=1e-5,
    bandwidth=1e11,
    attention={"bf16": 5e13},
)


def test_one_ranks_block_takes_what_a_step_says():
    with_one, with_two = (
        models.GPTSize(width=1024, heads=8, context=512, layers=layers) for layers in (1, 2)
    )
    parts = [theory.step_seconds(size, MACHINE, batch=2).parts for size in (with_one, with_two)]
    found = theory.tensor_parallel_block_seconds(2, 512, 1024, 1, MACHINE)
    for name in ("matrix products", "attention", "elementwise"):
        mine = sum(seconds for part, seconds in found.items() if part.startswith(name))
        assert mine == pytest.approx(parts[1][name] - parts[0][name])
    assert found["messages"] == 0


def test_what_ranks_share_of_a_block_and_what_they_repeat():
    one, four = (theory.tensor_parallel_block_seconds(2, 512, 8192, ranks, MACHINE) for ranks in (1, 4))
    tokens = theory.tensor_parallel_block_seconds(2, 512, 8192, 4, MACHINE, sequence_parallel=True)
    assert four["matrix products"] == pytest.approx(one["matrix products"] / 4)
    assert (
        four["elementwise, replicated"]
        == one["elementwise, replicated"]
        > tokens["elementwise, replicated"]
        == 0
    )
    assert sum(tokens.values()) - tokens["messages"] == pytest.approx(sum(one.values()) / 4)
    once, further = (
        2 * MACHINE.latency,
        3.4e-6,
    )  # seconds per collective, and per message of a ring beyond the first two
    sent = theory.wire_bytes("all_reduce", 2 * 2 * 512 * 8192, 4) / MACHINE.bandwidth
    assert four["messages"] == pytest.approx(4 * (once + 4 * further + sent))
    assert tokens["messages"] == pytest.approx(10 * (once + 2 * further + sent / 2))
    two = theory.tensor_parallel_block_seconds(2, 512, 8192, 2, MACHINE)["messages"]
    assert two == pytest.approx(
        4 * theory.collective_seconds("all_reduce", 2 * 2 * 512 * 8192, 2, MACHINE.latency, MACHINE.bandwidth)
    ), "as it was measured"
    alone = theory.MachineConstants(matrix={"bf16": {512: 1e14}}, memory=1e12, launch=0.0)
    with pytest.raises(ValueError, match="no bandwidth between ranks"):
        theory.tensor_parallel_block_seconds(2, 512, 1024, 2, alone)
