"""Distances: what is beyond a tolerance is red, a NaN too; what depends on one is yellow."""

import pytest
import torch
from matplotlib.colors import to_hex
from helpers import same_training
from helpers.course.plots.distances import DOUBTFUL, catches, clear_of, distance_bars
from helpers.course.plots.drawing import EMPTY
from helpers.course.plots.style import RIGHT, WRONG


def colors(plot):
    return [to_hex(box.get_facecolor()).upper() for box in plot.figure.axes[0].patches]


def test_distances_beyond_the_tolerance_are_red():
    rows = {"a": 0.0, "b": 1e-4, "c": 1.1e-4, "d": float("nan"), "e": float("inf")}
    plot = distance_bars(rows, 1e-4, "Title", "note")
    assert colors(plot) == [RIGHT, RIGHT, WRONG, WRONG, WRONG]
    said = "a within; b within; c beyond, 0.00011; d beyond, nan; e beyond, inf. 3 of 5 differ."
    assert plot.sentence == f"Figure: Title. note. Tolerance 0.0001: {said}"


def test_a_verdict_that_another_tolerance_would_turn_is_yellow():
    found = {"t": 3e-4, "u": 1e-8, "v": 0.9, "w": float("nan"), "x": "ValueError: no"}
    plot = catches({"fault": found}, dict.fromkeys(found, 1e-4), "Title", dict.fromkeys(found, 0.0))
    assert colors(plot)[5:] == [DOUBTFUL.upper(), EMPTY.upper(), RIGHT, RIGHT, RIGHT]
    assert plot.tests == {"fault": ["t", "v", "w", "x"]} and plot.distances["fault"]["t"] == 3e-4
    assert plot.sentence.endswith('fault: "t", "v", "w", "x" (depends on the tolerance of "t").')
    words = [text.get_text() for text in plot.figure.axes[0].texts]
    assert words[:1] + words[5:7] + words[-1:] == [
        "passes\n0",
        "✓ caught\n0.0003",
        "not caught\n1e-08",
        "✓ caught\nValueError",
    ]


def test_noise_gives_the_tolerance_and_what_is_near_it_is_yellow():
    noise, found = {"t": 0.01, "u": 0.01, "v": 0.01, "w": 0.0}, {"t": 0.6, "u": 0.06, "v": 0.02, "w": 1e-7}
    plot = catches(
        {"fault": found}, {test: clear_of(one) for test, one in noise.items()}, "Title", noise, True
    )
    assert colors(plot) == [EMPTY.upper()] * 4 + [RIGHT, DOUBTFUL.upper(), EMPTY.upper(), EMPTY.upper()]
    assert plot.sentence.endswith(
        'the right one: no test; fault: "t", "u" (depends on the tolerance of "u").'
    )
    words = [text.get_text() for text in plot.figure.axes[0].texts]
    assert (words[0], words[-1]) == ("noise\n0.01", "not caught\n1e-07")


# --- same_training

RIGHT_ONE = {
    "start": torch.zeros(2),
    "weights": torch.tensor([1.0, 2.0]),
    "gradients": torch.tensor([0.1, -0.2]),
    "masters": torch.tensor([1.0, 2.0]),
    "norms": [1.0, 2.0],
}


def said(*changes, optimizer="SGD", **options):
    return same_training([RIGHT_ONE | change for change in changes], RIGHT_ONE, optimizer, **options).sentence


@pytest.mark.parametrize(
    "change, beyond",
    [
        ({"norms": [1.0, 4.0]}, "global norm of each step beyond, 1;"),
        ({"gradients": torch.tensor([0.2, -0.4])}, "gradients beyond, 1;"),
        ({"masters": torch.tensor([2.0, 4.0])}, "masters beyond, 1;"),
        ({"weights": torch.tensor([1.0, 2.001])}, "weights beyond, 0.00045;"),
        ({"weights": torch.tensor([1.0, float("nan")])}, "weights beyond, nan;"),
        ({"norms": [1.0, float("nan")]}, "global norm of each step beyond, nan;"),
    ],
)
def test_one_rank_that_is_off_is_noticed(change, beyond):
    assert said({}, {}).endswith("weights, between ranks within. All 5 agree.")
    assert beyond in said({}, change) and "differ" in said({}, change)
    assert beyond in said(change, {})


def test_a_small_step_of_large_weights_is_measured_by_the_update():
    right = RIGHT_ONE | {"start": torch.tensor([1000.0, 1000.0]), "weights": torch.tensor([1000.1, 1000.0])}
    half = right | {"weights": torch.tensor([1000.05, 1000.0])}
    assert "weights beyond, 0.5;" in same_training([half], right, "SGD").sentence


def test_the_card_says_which_optimizer_hides_what():
    assert "AdamW, whose weights barely react if all gradients are scaled" in said({}, optimizer="AdamW")
    assert "trained with SGD, whose steps show the gradients' scale" in said({})
    weights = {key: RIGHT_ONE[key] for key in ("start", "weights")}
    with pytest.raises(ValueError, match="weights alone, trained with AdamW, cannot show .* train with SGD"):
        same_training([weights], weights, "AdamW")
    assert "Both agree" in same_training([weights], weights, "SGD").sentence


def test_what_a_report_lacks_is_said():
    with pytest.raises(ValueError, match="reports no start: training.in_one_process does"):
        same_training([RIGHT_ONE], {"weights": torch.ones(2)}, "SGD")
    with pytest.raises(ValueError, match="cannot be compared: gather shards"):
        same_training([RIGHT_ONE | {"weights": torch.ones(1)}], RIGHT_ONE, "SGD")
