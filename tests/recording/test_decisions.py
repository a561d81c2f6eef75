"""Experiments that decide between ways: their runs and configurations, and a block on the CPU."""

import statistics

import pytest
from helpers import job, recorded, theory
from helpers.course.recording import block, links, record, table
from helpers.tools.launcher.jobs import launch
from helpers.tools.theory.llama import rms_norm_activation_bytes

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


def test_a_divided_block_of_llama_keeps_what_its_tensors_say():
    """Norms and inputs whole with tensor parallelism; with sequence parallelism norms are divided too, but
    torch keeps the two inputs that it gathers (Megatron gathers them again).  Plus the block's result; torch
    rounds each tensor to 512 bytes."""
    (shape, tokens), found = block.BLOCKS["Llama 3 8B"], {}
    size = theory.LlamaSize.of(job.MODELS["8 B"])
    assert shape["hidden_size"] == size.width
    wide = 2 * tokens * size.width  # bytes of a bf16 tensor as wide as the model
    norm = rms_norm_activation_bytes(tokens, 1, size.width, 2)
    attention = tokens * (4 * (size.attention_width + size.kv_width) + 4 * size.heads)
    divided = attention + 8 * tokens * size.feed_forward
    for run in recorded.runs("block"):
        found[run.ranks, run.arguments["sequence_parallel"]] = run.reports[0]["kept"]
    whole = 2 * (norm + wide) + divided + wide
    due = {(1, False): whole, (1, True): whole, (2, False): whole - divided // 2}
    due[2, True] = norm + 2 * wide + divided // 2 + wide // 2
    assert {case: kept - due[case] for case, kept in found.items() if not 0 <= kept - due[case] < 3e4} == {}


def test_a_model_that_was_built_outside_of_zero_init_takes_no_more_of_a_gpu():
    """transformers builds it on the host, and the engine divides it there."""
    case = "Llama, stage 3"
    (outside,) = recorded.runs("rehearsed_models", training=f"{case}, built outside")
    (inside,) = recorded.runs("rehearsed_models", training=case, hardware="2 x NVIDIA H200")
    assert [run.ranks for run in (outside, inside)] == [2, 2]
    for one, other in zip(outside.reports[0], inside.reports[0]):
        assert one["phase"] == other["phase"] and one["peak"]["allocated"] == other["peak"]["allocated"]


def test_with_adam_on_the_host_each_micro_batch_of_a_step_costs_nearly_the_same():
    """Since the gradients of each go to the host: a large step spares less than Adam's share."""
    seconds = {
        run.arguments["micro_batches"]: statistics.median(run.reports[0]["seconds"])
        for run in recorded.runs("offload")
    }
    assert sorted(seconds) == [1, 2, 4, 8]
    assert seconds[8] / 8 < seconds[4] / 4 < seconds[2] / 2 < seconds[1]
