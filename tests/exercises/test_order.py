"""The choice of an order in lesson 15: what is taken, what is refused, and what is said of its bytes."""

import pytest
from helpers.course.exercises.combining_parallelism import Order

AXES = {"pipe": 2, "data": 2, "model": 2}
COUNTED = {
    "pipe, data, model": 100_000,
    "pipe, model, data": 100_500,
    "data, pipe, model": 900_000,
    "model, data, pipe": 1_700_000,
}


@pytest.mark.parametrize("given", [(..., ..., ...), ...])
def test_dots_are_not_written_yet(given, capsys):
    order = Order()
    assert order.choose(given, AXES) == ("pipe", "data", "model")
    order.compare(COUNTED)
    said = capsys.readouterr().out
    assert (
        said.startswith("○ not written yet. The lesson uses the course's order, pipe, data, model")
        and "no order of yours to judge" in said
    )


@pytest.mark.parametrize(
    "given",
    [
        ("pipe", "data"),
        ("pipe", "data", "data"),
        ("pipe", "data", "tensor"),
        "pipe",
        ("pipe", ..., "model"),
        7,
        None,
    ],
)
def test_what_is_no_order_is_told_what_one_is(given, capsys):
    assert Order().choose(given, AXES) == ("pipe", "data", "model")
    assert 'not yet: an order names each of "pipe", "data", "model" once' in capsys.readouterr().out


@pytest.mark.parametrize("given", [("model", "data", "pipe"), ["model", "data", "pipe"], "model, data, pipe"])
def test_an_order_is_taken_whatever_it_costs_and_its_cost_is_said(given, capsys):
    order = Order()
    assert order.choose(given, AXES) == ("model", "data", "pipe")
    order.compare(COUNTED)
    assert (
        "not yet: 1,700,000 bytes, 17 times as many as the best order; along model ranks send more"
        in capsys.readouterr().out
    )


def test_an_order_that_sends_about_the_least_is_correct(capsys):
    order = Order()
    order.choose(("pipe", "model", "data"), AXES)
    order.compare(COUNTED)
    assert "✓ correct: 100,500 bytes, and no order sends less" in capsys.readouterr().out


def test_a_later_mistake_forgets_the_earlier_order(capsys):
    order = Order()
    order.choose(("model", "data", "pipe"), AXES)
    order.choose("none", AXES)
    order.compare(COUNTED)
    assert "no order of yours to judge" in capsys.readouterr().out
