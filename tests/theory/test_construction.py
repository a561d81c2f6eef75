"""Building a model: the peak predicted and measured to the byte, and the factories that partition when the
configuration says so."""

import pytest
import torch
from transformers import GPT2Config, GPTNeoXConfig
from helpers import launch, models, preload, theory
from helpers.course.models import GPTSize

pytestmark = pytest.mark.ranks

preload("transformers.GPT2LMHeadModel", "transformers.GPTNeoXForCausalLM")
SIZES = (GPTSize(width=128, layers=3), GPTSize(vocabulary=257, context=24, width=36, layers=2, heads=3))
WAYS = [(dtype, partitioned) for dtype in ("bf16", "fp32") for partitioned in (False, True)]
SMALL = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
SHAPES = {
    "GPT-NeoX": GPTNeoXConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, **SMALL
    ),
    "GPT-2": GPT2Config(n_positions=32, n_embd=32, n_layer=2, n_head=2, **SMALL),
}


def configuration(stage, bf16=True):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": stage},
    }


def peaks(size):
    """{(dtype, partitioned): peak in bytes}."""
    import deepspeed
    from helpers.tools.measure.ledger import Ledger

    deepspeed.init_distributed()
    found = {}
    for dtype, partitioned in WAYS:
        torch.set_default_dtype(torch.bfloat16 if dtype == "bf16" and not partitioned else torch.float32)
        with Ledger("cpu") as ledger:
            models.build(models.GPT, size, config=configuration(3, dtype == "bf16") if partitioned else None)
        found[dtype, partitioned] = ledger.peak
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"width{size.width}")
def test_the_peak_of_construction_to_the_byte(size, ranks):
    reports = launch(peaks, ranks=ranks, arguments={"size": size}, device="cpu")
    for way in WAYS:  # a rank may hold a tensor more that is on its way to another
        assert min(report[way] for report in reports) == theory.construction_peak_bytes(
            models.module_sizes(size), ranks, *way
        )


def partitioned_parameters(shape, stages):
    """{stage: (parameters in parts, parameters)}."""
    import deepspeed

    deepspeed.init_distributed()
    found = {}
    for stage in stages:
        parameters = list(models.build_transformers(shape, configuration(stage)).parameters())
        shards = [parameter.ds_tensor for parameter in parameters if hasattr(parameter, "ds_tensor")]
        assert not shards or not any(parameter.numel() for parameter in parameters)
        found[stage] = len(shards), len(parameters)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_models_are_partitioned_exactly_when_the_configuration_says_stage_3(name):
    for found in launch(
        partitioned_parameters,
        ranks=2,
        arguments={"shape": SHAPES[name], "stages": (0, 1, 2, 3)},
        device="cpu",
    ):
        for stage, (divided, parameters) in found.items():
            assert divided == (parameters if stage == 3 else 0)


def spread(shape, stage):
    import deepspeed

    table = models.build_transformers(shape, configuration(stage)).get_input_embeddings().weight
    with deepspeed.zero.GatheredParameters(table):
        return table.float().std().item()


@pytest.mark.parametrize("name", SHAPES)
def test_their_weights_are_initialised_as_transformers_does(name):
    for stage in (0, 3):
        assert all(
            abs(one - 0.02) < 0.002
            for one in launch(
                spread, ranks=2, arguments={"shape": SHAPES[name], "stage": stage}, device="cpu"
            )
        )


def test_the_largest_model_built_in_parts_is_where_the_exact_peak_meets_the_memory():
    modules = models.module_sizes(models.GPT3)
    largest, count = (
        max(elements for module in modules for elements in module),
        theory.gpt_parameters(models.GPT3),
    )
    memory = theory.construction_peak_bytes(modules, 64, "bf16")
    assert abs(theory.largest_built_in_parts(memory, 64, largest) / count - 1) < 0.05
    with pytest.raises(ValueError, match="largest tensor alone"):
        theory.largest_built_in_parts(6 * largest, 64, largest)
