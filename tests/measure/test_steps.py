"""Runs beside each other: which losses are equal to which is said in words, and a run that is wrong is
named."""

import pytest
from helpers.course.runs.steps import mean_losses, same_losses

RUNS = {"one process": (1, 1, None), "t = 2": (2, 2, "one process"), "wrong": (3, 1, "one process")}


@pytest.fixture
def without_ranks(monkeypatch):
    """`launch` calls the function here, once for each rank."""
    monkeypatch.setattr(
        "helpers.tools.launcher.jobs.launch",
        lambda function, ranks, arguments: [function(rank, ranks, **arguments) for rank in range(ranks)],
    )


def train(rank, ranks, tensor_ranks, first):
    """Ranks differ, but for three of them their mean does not."""
    off = 0.01 * (rank - (ranks - 1) / 2) + (1e-3 if ranks == 3 else 0)
    return {"losses": [first + off, 5.0 + off], "tensor_ranks": tensor_ranks}


def test_equal_means_are_equal_and_others_are_not(without_ranks, capsys):
    found = same_losses(train, RUNS, first=5.47)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "one process losses 5.47 5" and lines[1].endswith(
        "equal to one process within 0.0001: yes"
    )
    assert lines[2] == "wrong       losses 5.47 5; equal to one process within 0.0001: no"
    assert (
        mean_losses(found["t = 2"]) == pytest.approx([5.47, 5.0]) and found["t = 2"][1]["tensor_ranks"] == 2
    )
