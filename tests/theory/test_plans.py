"""Plans on a cluster: against numbers worked by hand, and what they refuse."""

import pytest
from helpers import theory
from helpers.course.models import GPTSize

SIZE = GPTSize(vocabulary=50257, context=2048, width=5120, layers=40, heads=40)  # 12.85 billion parameters
CLUSTER = theory.Cluster(gpus=16, memory=80e9, rate=400e12, link=25e9)


def plan(stage, **options):
    return theory.ZeroPlan(size=SIZE, cluster=CLUSTER, stage=stage, **options)


def test_what_is_left_and_what_fits():
    """12.853 billion parameters: 4 + 12/16 = 4.75 bytes of each at stage 1 are 61.05 GB, 2 + 14/16 at stage 2
    are 36.95."""
    assert [round(plan(stage).states / 1e9, 2) for stage in (0, 1, 2)] == [205.65, 61.05, 36.95]
    assert plan(1, buckets=2e9).room == pytest.approx(80e9 - 3e9 - 2e9 - 61.05e9, abs=1e7)
    assert plan(0).room < 0 and plan(0).at_once == 0
    assert plan(1, buckets=2e9).at_once == 0 and plan(1, buckets=0.2e9).at_once == 1
    assert (
        plan(1, buckets=2e9, checkpointed=True).at_once == 5
        and plan(2, buckets=2e9, checkpointed=True).at_once == 15
    )


def test_checkpointing_a_share_of_the_blocks():
    """Of 40 blocks, 4 checkpointed: a tenth of what all of them free, and a tenth of the third that they
    compute more."""
    none, some, every = (plan(1, buckets=0.2e9, checkpointed=share) for share in (0, 4 / 40, 1))
    assert some.each == pytest.approx(none.each - (none.each - every.each) / 10)
    assert none.at_once == some.at_once == 1 and every.at_once == 6
    none, some, every = (one.step(2**21) for one in (none, some, every))
    assert some["work"] == pytest.approx(none["work"] * (1 + 1 / 30))
    assert every["work"] == pytest.approx(none["work"] * 4 / 3)
    assert plan(2, checkpointed=True).step(2**21) == plan(2, checkpointed=1.0).step(2**21)


@pytest.mark.parametrize("to_owner, reduced", [(False, 2), (True, 1)])
def test_a_step_in_seconds(to_owner, reduced):
    """A checkpointed step of 2**21 tokens: 8 x 12.853e9 x 2**21 / 6.4e15 = 33.7 s; Psi elements over 25 GB/s
    are 0.964 s."""
    work, unit = 8 * 12.853e9 * 2**21 / 6.4e15, 2 * 12.853e9 * 15 / 16 / 25e9
    one, two = (plan(stage, buckets=2e9, checkpointed=True).step(2**21, to_owner) for stage in (1, 2))
    assert (one["micro-batches"], two["micro-batches"]) == (16, 8)
    assert one["work"] == two["work"] == pytest.approx(work, rel=1e-3)
    assert one["messages"] == pytest.approx((reduced + 1) * unit, rel=1e-3)
    assert two["messages"] == pytest.approx((8 * reduced + 1) * unit, rel=1e-3)
    assert one["nothing hidden"] == one["work"] + one["messages"]
    hidden = min(reduced * unit, 3 / 4 * work / 16)  # behind the last backward pass
    assert one["hidden at best"] == pytest.approx(work + (reduced + 1) * unit - hidden, rel=1e-3)
    assert two["hidden at best"] == pytest.approx(work + unit, rel=1e-3)  # all but the all-gather


def test_stage_0_has_no_owner():
    alone = theory.ZeroPlan(
        size=SIZE, cluster=theory.Cluster(gpus=16, memory=300e9, rate=400e12, link=25e9), stage=0
    )
    assert alone.step(2**21, to_owner=True) == alone.step(2**21)


def test_a_plan_that_does_not_fit_and_one_that_is_not_known():
    with pytest.raises(ValueError, match="not one sequence fits: it needs 15.1 GB and finds 13.9"):
        plan(1, buckets=2e9).step(2**21)
    with pytest.raises(ValueError, match="no whole number of sequences"):
        plan(2).step(2**21 + 1)
    with pytest.raises(ValueError, match="stage 3 sends parameters"):
        plan(3)
    with pytest.raises(ValueError, match="a share of the blocks, 0 to 1, not 4"):
        plan(1, checkpointed=4)


def test_the_passes_of_zero_3():
    """33.1e9 parameters, 8 x 2,048 tokens at 400e12 FLOP/s: 2.71 s forward; Psi elements of 16 ranks are 62.1
    GB, so F / T (15 / 16) = 22.9 GB/s."""
    step = {
        "parameters": 33.1e9,
        "gpus": 16,
        "rate": 400e12,
        "tokens": 64 * 2048,
        "micro_batches": 8,
        "checkpointed": True,
    }
    ways = {"default": theory.zero_3_passes(**step), "hpz": theory.zero_3_passes(**step, hpz=True)}
    ways["regathered"] = theory.zero_3_passes(**step, regathered=True)
    for passes in ways.values():
        assert len(passes) == 16 and sum(work for work, _ in passes) == pytest.approx(
            8 * 33.1e9 * 64 * 2048 / 400e12
        )
        assert max(sent / work for work, sent in passes) == pytest.approx(400e12 / (8 * 2048) * 15 / 16)
    units = {
        way: round(sum(sent for _, sent in passes) / (2 * 33.1e9 * 15 / 16)) for way, passes in ways.items()
    }
    assert units == {"default": 24, "hpz": 9, "regathered": 32}
    plain = theory.zero_3_passes(**step | {"checkpointed": False})
    assert sum(work for work, _ in plain) == pytest.approx(6 * 33.1e9 * 64 * 2048 / 400e12)
    with pytest.raises(ValueError, match="third time"):
        theory.zero_3_passes(**step | {"checkpointed": False}, regathered=True)
