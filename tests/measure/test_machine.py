"""A machine's constants: the fit against times made up from known constants, the probes' operators counted,
and everything measured once."""

import json

import pytest
import torch
from helpers import launch, theory
from helpers.tools.measure import constants
from tests.operators import Operators

SMALL = constants.Effort(
    32, (16, 32), 2**16, (1, 1, 16, 8), (2**10, 2**20), 0.001
)  # of what is measured nothing is asserted, and it is quick
CPU = torch.device("cpu")


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_fit_finds_the_constants_that_made_the_times(ranks):
    times = {
        size: theory.collective_seconds("all_reduce", size, ranks, 3e-5, 2e9)
        for size in (2**10, 2**16, 2**24)
    }
    assert constants.fit_latency_and_bandwidth(times, ranks) == pytest.approx((3e-5, 2e9))


def test_a_fit_has_no_negative_latency():
    latency, bandwidth = constants.fit_latency_and_bandwidth({1000: 1e-6, 2000: 4e-6}, 2)
    assert (
        latency == 0 and 5e8 <= bandwidth <= 1e9
    )  # between those of the two, 2 messages of S / 2 bytes each


def test_noise_that_makes_larger_messages_quicker_leaves_what_the_largest_reached():
    assert constants.fit_latency_and_bandwidth({1000: 2.0, 2000: 0.5}, 2) == (0, 4000)


def test_calls_are_counted_as_torch_dispatches_them(monkeypatch):
    """Per layer a product with its bias and a GELU; backward two products, the bias's sum and the GELU's
    gradient."""
    monkeypatch.setattr(constants, "_seconds", lambda work, *_, **__: work() or 1.0)
    with Operators() as seen:
        found = constants.call_seconds(SMALL, CPU)
    inside = sum(
        number
        for (_, name), number in seen.count.items()
        if name in ("addmm", "gelu", "mm", "sum", "gelu_backward")
    )
    assert found == 1 / inside and seen.count["", "addmm"] == constants.PROBE_LAYERS
    with Operators() as seen:
        found = constants.launch_seconds(SMALL, CPU)
    assert found == 1 / seen.count["", "add_"]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: constants.constants(dtypes=("fp8",)), "dtypes must be among bf16, fp32; not fp8"),
        (lambda: constants.fit_latency_and_bandwidth({1: 1.0}, 2), "two sizes and two ranks"),
        (lambda: constants.fit_latency_and_bandwidth({1: 1.0, 2: 1.0}, 1), "two sizes and two ranks"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_without_ranks_the_device_alone_is_measured(monkeypatch):
    for name in ("WORLD_SIZE", "DS_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)
    found = constants.constants(effort=SMALL)
    assert (
        found.bandwidth is None
        and not found.asynchronous
        and set(found.matrix) == set(found.attention) == {"bf16", "fp32"}
    )


@pytest.mark.ranks
def test_two_ranks_measure_their_connection_too():
    """And the constants predict a step, and travel as JSON."""
    reports = launch(
        constants.constants, ranks=2, arguments={"dtypes": ("fp32",), "effort": SMALL}, device="cpu"
    )
    for found in reports:
        assert (
            found.bandwidth > 0
            and found.latency >= 0
            and found.launch > 0
            and found.call > 0
            and "thread" in found.name
        )
        assert list(found.matrix["fp32"]) == [16, 32]
        assert theory.MachineConstants.from_dict(json.loads(json.dumps(found.to_dict()))) == found
