"""What messages carry, told by what they fill or what their tensors hold, against steps whose messages are
known."""

import pytest
import torch
from helpers import Carried, Ledger, launch, models
from helpers.course import training
from tests.support import configuration

pytestmark = pytest.mark.ranks
CACHES = ("param_persistence_threshold", "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size")
CACHES = tuple(f"stage3_{name}" for name in CACHES)  # without them stage 3 gathers for every pass
RANKS, ELEMENTS = 2, 48
EACH = ELEMENTS / RANKS  # elements that a rank of two sends of a whole tensor in an all-gather


def sent(case):
    """{category: elements} of a few messages, after a first step of Adam outside of the count."""
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    with Ledger() as ledger:
        layer = torch.nn.Linear(ELEMENTS, 1, bias=False)
        weight, adam = layer.weight, torch.optim.AdamW(layer.parameters())
        ledger.watch(layer, adam)
        layer(torch.ones(1, ELEMENTS)).sum().backward()
        adam.step()
        with Carried(ledger) as carried:
            case(comm, weight, adam.state[weight], torch.empty(ELEMENTS // RANKS))
    return dict(carried.elements)


def gather_weights(comm, weight, state, part):
    comm.all_gather_into_tensor(weight.detach().flatten(), part.fill_(1.0))


def gather_momentum(comm, weight, state, part):
    comm.all_gather_into_tensor(torch.empty(ELEMENTS), state["exp_avg"].flatten()[: len(part)].clone())


def reduce_gradients(comm, weight, state, part):
    padded = torch.nn.functional.pad(torch.cat([weight.grad.flatten()[:-2]]), (0, 2)).bfloat16()
    comm.reduce_scatter_tensor(part.bfloat16(), padded / 2)


def reduce_a_bucket(comm, weight, state, part):
    bucket = torch.zeros(ELEMENTS)
    bucket.narrow(0, 0, ELEMENTS).copy_(weight.grad.flatten())
    comm.all_reduce(bucket.mul_(0.5))


def reduce_a_norm(comm, weight, state, part):
    comm.all_reduce(weight.grad.square().sum().view(1))


def reduce_a_mixture(comm, weight, state, part):
    comm.all_reduce(weight.detach() * weight.grad)


def reuse_a_buffer(comm, weight, state, part):
    """What was written last counts."""
    bucket = weight.grad.clone()
    bucket.copy_(state["exp_avg_sq"])
    comm.all_reduce(bucket)
    bucket.copy_(torch.rand_like(bucket))
    comm.all_reduce(bucket)


@pytest.mark.parametrize(
    "case, expected",
    [
        (gather_weights, {"parameters": EACH}),
        (gather_momentum, {"optimizer states": EACH}),
        (reduce_gradients, {"gradients": EACH}),
        (reduce_a_bucket, {"gradients": 2 * EACH}),
        (reduce_a_norm, {"other": 1}),
        (reduce_a_mixture, {"other": 2 * EACH}),
        (reuse_a_buffer, {"optimizer states": 2 * EACH, "other": 2 * EACH}),
    ],
)
def test_what_a_message_carries(case, expected):
    reports = launch(sent, ranks=RANKS, arguments={"case": case}, device="cpu")
    assert list(reports) == [expected] * RANKS


@pytest.mark.parametrize(
    "stage, zero, gradients, parameters",
    [
        (0, {}, 2, 0),
        (1, {}, 2, 1),
        (1, {"use_multi_rank_bucket_allreduce": False}, 1, 1),
        (2, {}, 4, 1),
        (3, dict.fromkeys(CACHES, 0), 2, 4),
    ],
)
def test_deepspeed_sends_what_the_formulas_say(stage, zero, gradients, parameters):
    """Two micro-batches; multiples of Psi (N - 1) / N, and nothing of Adam's states.  Stage 3 gathers the
    table, which embedding and head share, twice in each pass."""
    config = configuration(stage, micro_batch=2, accumulation=2, **zero)
    report = launch(training.train, ranks=RANKS, arguments={"config": config}, device="cpu")[0]
    carried, unit = report["carried"], len(report["weights"]) / RANKS
    assert carried.get("gradients", 0) / unit == pytest.approx(gradients, rel=0.01)
    table = models.TINY.vocabulary * models.TINY.width / RANKS * parameters * (stage == 3)
    assert carried.get("parameters", 0) == pytest.approx(parameters * unit + table, rel=0.001)
    assert set(carried) <= {"gradients", "parameters", "other"} and carried.get("other", 0) < 10
    assert 2 * sum(carried.values()) == pytest.approx(sum(report["traffic"].ideal.values()), rel=1e-4)


def shards_blocks(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


@pytest.mark.parametrize("wrap", [torch.nn.parallel.DistributedDataParallel, shards_blocks])
def test_so_do_torchs_own_ways(wrap):
    report = launch(training.train_plain, ranks=RANKS, arguments={"wrap": wrap}, device="cpu")[0]
    carried, unit = report["carried"], len(report["weights"]) / RANKS
    several = 2 if wrap is not shards_blocks else 1
    assert carried["gradients"] / unit == pytest.approx(several, rel=0.001)
    assert set(carried) - {"gradients"} <= {"parameters"}
