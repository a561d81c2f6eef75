"""Experiments that decide between ways: their runs and configurations, and a block on the CPU."""

import pytest
from helpers.course.recording import block, links, record, table
from helpers.tools.launch.jobs import launch

TINY = dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=4, intermediate_size=96), 32


@pytest.mark.parametrize("ranks, sequence_parallel", [(1, False), (2, False), (2, True)])
@pytest.mark.ranks
def test_a_block_is_divided_but_for_its_norms(ranks, sequence_parallel):
    of = {"of": TINY, "sequence_parallel": sequence_parallel}
    reports = launch(block.block, ranks=ranks, arguments=of, device="cpu")
    whole, norms = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96, 2 * 64
    assert [report["parameters"] for report in reports] == [whole // ranks + norms] * ranks
    assert all(len(report["seconds"]) == block.PASSES for report in reports)


def test_every_change_is_one_key_beside_the_default():
    for ranks, arguments in links.runs():
        config = links.configuration(ranks, **arguments)
        default = links.configuration(ranks, **arguments | {"change": ""})
        sections = {name for name in config if config[name] != default[name]}
        assert sections <= {"zero_optimization"}
        more = config["zero_optimization"].keys() - {"stage"}
        assert len(more) == bool(arguments["change"])
        assert bool(sections) == bool(arguments["change"])


def test_runs_are_chosen_by_their_arguments(monkeypatch):
    monkeypatch.setattr(record, "gpu_count", lambda: 2)
    chosen = record.planned("links", ["1.5B"], [2, 4], "cuda", [1], {"link": "sockets", "micro_batches": "8"})
    assert {(ranks, run["link"], run["micro_batches"]) for ranks, run in chosen} == {(2, "sockets", 8)}
    assert len(chosen) == len(links.OF_STAGE[1])
    assert record.planned("links", ["1.5B"], [2], "cuda", [1], {"link": "pigeons"}) == []


def test_experiments_take_the_arguments_that_their_runs_have():
    import inspect

    for name in ("links", "block", "fsdp_models", "rehearsed_models"):
        experiment = table.EXPERIMENTS[name]
        needed = set(inspect.signature(experiment.function).parameters) - {"config", "scratch"}
        assert all(needed <= set(arguments) for _, arguments in experiment.runs), name
