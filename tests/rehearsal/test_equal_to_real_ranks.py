"""Rehearsed ranks beside real ones on the CPU: every category at every moment, every peak, every message, and
the life of every storage.

A sample runs always; `make rehearse-all` runs the whole grid and prints how many figures were equal.
"""

import os
import shutil

import pytest
from helpers import launch, rehearse
from tests.rehearsal import cases

pytestmark = pytest.mark.ranks
ALL = "REHEARSE_ALL" in os.environ
GRIDS = {"small": cases.small_grid} | ({"wide": cases.wide_grid} if ALL else {})
RANKS = (1, 2, 4)


SHORT = {
    1: ("stage 1, fp32", "stage 3, fp32"),
    4: ("stage 2, bf16", "stage 3, bf16"),
}  # ranks: what is run of the small grid where time is short


def few(grid, ranks):
    """Of the small grid where time is short: all of it on two ranks, and two cases of it on one and on
    four."""
    return grid if ALL or ranks not in SHORT else {name: grid[name] for name in SHORT[ranks]}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", GRIDS)
def test_every_figure_is_that_of_real_ranks(name, ranks):
    grid = few(GRIDS[name](), ranks)
    real = launch(cases.several, ranks, {"cases": grid}, device="cpu", timeout=1200)
    count, late = 0, []
    for rank in sorted({0, ranks - 1} if ALL else {ranks - 1}):
        rehearsed = rehearse(cases.several, ranks, rank, {"cases": grid})
        for case in grid:
            assert cases.differences(real[rank][case], rehearsed[case]) == {}, (
                f"{case}, rank {rank} of {ranks}"
            )
            count += cases.figures(rehearsed[case])
            late += cases.races(real[rank][case], rehearsed[case])
    most = max((real - rehearsed for _, real, rehearsed in late), default=0)
    print(
        f"{name}, {ranks} ranks: {count:,} figures equal; {len(late)} real peaks higher, by at "
        f"most {most:,} bytes"
    )


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler for DeepSpeed's own Adam")
@pytest.mark.parametrize("stage, offload", [(1, {}), (3, {"offload_optimizer": {"device": "cpu"}})])
def test_deepspeeds_own_adam_holds_what_it_does_in_real_ranks(stage, offload):
    """On the device and on the host; there its compiled operators are called, here nothing is."""
    config = cases.keys(stage, **offload) | {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    arguments = {"size": cases.SMALL, "config": config}
    real = launch(cases.trained, 2, arguments, device="cpu", timeout=600)
    assert cases.differences(real[1], rehearse(cases.trained, 2, 1, arguments)) == {}


def test_what_is_compared_would_show_a_byte():
    """A rehearsal of another configuration is not taken for equal."""
    configs = [cases.keys(1, reduce_bucket_size=size) for size in (6_000, 6_001)]
    one, other = (
        rehearse(cases.trained, 2, arguments={"size": cases.SMALL, "config": config}) for config in configs
    )
    assert cases.differences(one, one) == {} and cases.races(one, one) == []
    assert "messages" in cases.differences(one, other) or any(
        "storage" in name for name in cases.differences(one, other)
    )
