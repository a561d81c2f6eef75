"""Recorded runs: whole, small, and what theory predicts for them; and the recorder itself, on the CPU."""

import json

import pytest
import torch
from helpers import models, record, recorded, theory

FILES = sorted(recorded.STORED.glob("*.json"))
RUNS = [run for path in FILES for run in recorded.read(path)]
WITH_STATES = [run for run in RUNS if run.experiment in ("zero", "tensor", "pipeline") and not run.error]
NEEDED = {"experiment", "command", "commit", "date", "gpus", "device", "device_memory", "versions", "sizes", "shapes", "runs"}


def named(run):
    return "-".join([run.experiment, str(run.ranks), *(str(value) for value in run.arguments.values() if not isinstance(value, list))])


def test_they_are_small():
    assert FILES and sum(path.stat().st_size for path in FILES) < 200_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_was_run_on_what(path):
    found = json.loads(path.read_text())
    assert set(found) == NEEDED and found["gpus"] > 0 and len(found["commit"]) == 40
    assert {"python", "torch", "deepspeed", "cuda", "nccl"} <= set(found["versions"])
    for name, size in found["sizes"].items():
        assert found["shapes"][name] == record.shapes(models.GPTSize(**size))
    planned = record.plan(found["experiment"], list(found["sizes"]), (1, 2, 4, 8))
    assert all((run["ranks"], run["arguments"]) in planned for run in found["runs"])


@pytest.mark.parametrize("run", RUNS, ids=named)
def test_every_rank_reported(run):
    assert bool(run.error) != (len(run.reports) == run.ranks)
    assert not run.error or "out of memory" in run.error


@pytest.mark.parametrize("run", WITH_STATES, ids=named)
def test_states_are_those_predicted_to_the_byte(run):
    for rank, report in enumerate(run.reports):
        for moment, found in report["moments"].items():
            assert found["settled"]
            assert run.states(rank, moment) == run.predicted(rank, moment)


@pytest.mark.parametrize("run", WITH_STATES, ids=named)
def test_the_allocator_was_asked_for_the_ledgers_bytes_and_workspaces(run):
    """Torch was asked for what the ledger counts, for the workspaces of matrix products, and for the byte of NCCL's barrier."""
    for report in run.reports:
        for found in report["moments"].values():
            assert found["requested"] - found["workspaces"] - sum(found["categories"].values()) == 1
            assert found["workspaces"] % 2**20 == 0
            assert found["requested"] <= found["allocated"] <= found["reserved"] <= found["used"]


def test_tensor_parallel_activations_are_those_predicted():
    for run in recorded.runs("tensor"):
        expected = theory.tensor_parallel_activation_bytes(run.size, 1, run.size.context, 2, run.ranks, run.device)
        assert all(report["activations"] == expected for report in run.reports)


def test_activations_are_those_predicted():
    for run in recorded.runs("activations"):
        formula = theory.checkpointed_activation_bytes if run.arguments["checkpointing"] else theory.gpt_activation_bytes
        assert run.reports[0]["kept"] == formula(run.size, 1, run.size.context, 2, device=run.device)


def test_construction_is_as_predicted():
    for run in recorded.runs("construction"):
        dtype, partitioned = ("bf16", True) if run.arguments["partitioned"] else ("fp32", False)
        with torch.device("meta"):
            pieces = [models.Embedding(run.size), *(models.Block(run.size) for _ in range(run.size.layers)), models.Head(run.size)]
        modules = [[parameter.numel() for parameter in module.parameters(recurse=False)] for piece in pieces for module in piece.modules()]
        for report in run.reports:
            assert report["peak"] == theory.construction_peak_bytes(modules, run.ranks, dtype, partitioned)


def test_a_run_that_nobody_recorded_is_named():
    with pytest.raises(LookupError, match="helpers.record zero"):
        recorded.runs("zero", ranks=64)


@pytest.mark.parametrize("experiment", record.EXPERIMENTS)
def test_the_recorder_records(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MESSAGES", [1024, 4096])
    path = record.record(experiment, ["tiny"], (1, 2), "cpu", tmp_path)
    found = list(recorded.read(path))
    assert found and not any(run.error for run in found)
    for run in found:
        for rank, report in enumerate(run.reports):
            for moment in report.get("moments", ()):
                assert run.states(rank, moment) == run.predicted(rank, moment)


def test_an_experiment_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="zero, activations"):
        record.plan("one", [], (1,))
