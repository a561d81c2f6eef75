"""Llama and Qwen3: parameters and FLOPs against transformers and torch, and what is refused."""

from dataclasses import replace

import pytest
import torch
from helpers import models, theory

SHAPES = {  # as their makers publish them
    "Llama-3.2-1B": ("Llama", 128_256, 2048, 16, 32, 8, 8192, 64, True),
    "Llama-3-8B": ("Llama", 128_256, 4096, 32, 32, 8, 14_336, 128, False),
    "Llama-3-70B": ("Llama", 128_256, 8192, 80, 64, 8, 28_672, 128, False),
    "Qwen3-0.6B": ("Qwen3", 151_936, 1024, 28, 16, 8, 3072, 128, True),
    "Qwen3-8B": ("Qwen3", 151_936, 4096, 36, 32, 8, 12_288, 128, False),
    "Qwen3-32B": ("Qwen3", 151_936, 5120, 64, 64, 8, 25_600, 128, False),
}
PUBLISHED = {  # Meta, arXiv 2407.21783, table 3, rounds; elements of the checkpoints on the Hugging Face hub
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
}


def config(name, **changes):
    import transformers

    kind, V, h, layers, a, k, f, d, tied = SHAPES[name]
    known = {"vocab_size": V, "hidden_size": h, "num_hidden_layers": layers, "num_attention_heads": a}
    known |= {"num_key_value_heads": k, "intermediate_size": f, "head_dim": d, "tie_word_embeddings": tied}
    return getattr(transformers, f"{kind}Config")(**known | changes)


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_in_the_models_order(name):
    with torch.device("meta"):
        model = models.build_transformers(config(name))
    size = theory.LlamaSize.of(config(name))
    elements = [parameter.numel() for parameter in model.parameters()]
    assert theory.elements(size) == elements
    assert theory.gpt_parameters(size) == sum(elements) == PUBLISHED.get(name, sum(elements))


@pytest.mark.parametrize("size", [models.TINY, models.GPT2])
def test_a_gpts_parameters_in_its_order(size):
    with torch.device("meta"):
        model = models.GPT(size)
    assert theory.elements(size) == [parameter.numel() for parameter in model.parameters()]


@pytest.mark.parametrize("name", SHAPES)
def test_flops_are_those_that_torch_counts(name):
    from torch.utils.flop_counter import FlopCounterMode

    few = config(name, num_hidden_layers=2)
    with torch.device("meta"):
        model = models.build_transformers(few)
        ids = torch.zeros(3, 512, dtype=torch.int64)
        mask = torch.ones(3, 1, 512, 512, dtype=torch.bool)  # without one it looks at numbers
        with FlopCounterMode(display=False) as counter:
            model(ids, attention_mask=mask, use_cache=False)
    assert theory.gpt_flops(theory.LlamaSize.of(few), 3, 512) == counter.get_total_flops()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model_type": "qwen2"}, "llama and qwen3 without biases, not qwen2"),
        ({"attention_bias": True}, "without biases"),
        ({"num_key_value_heads": 3}, "heads must be a multiple of kv_heads"),
        ({"head_dim": 5}, "head_width must be even"),
        ({"num_hidden_layers": 0}, "layers must be at least 1"),
    ],
)
def test_what_the_formulas_do_not_count_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        theory.LlamaSize.of(config("Llama-3-8B").to_dict() | changes)


def test_keys_are_shared_by_fused_attention_alone():
    size = theory.LlamaSize.of(config("Llama-3-8B"))
    for other in ({"kernel": "explicit"}, {"device": "cuda"}):
        with pytest.raises(ValueError, match="fused attention, which on CUDA needs bf16"):
            theory.gpt_activation_bytes(size, 1, 64, 4, **other)
    assert theory.gpt_activation_bytes(replace(size, kv_heads=32), 1, 64, 4, device="cuda") > 0
