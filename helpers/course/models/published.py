"""Configurations of published models, as their makers gave them to transformers."""

from __future__ import annotations

from helpers.course.job.reference import MODELS
from helpers.course.recording.rehearsed_models import MODELS as RECORDED

PUBLISHED = {  # {name: keys of transformers' configuration}
    "Llama 2 7B": {  # arXiv 2307.09288; what `LlamaConfig()` is by default
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "vocab_size": 32000,
    },
    "Llama 3 8B": MODELS["8 B"],  # arXiv 2407.21783, table 3
    "Llama 3.2 1B": RECORDED["Llama 3.2 1B"],  # huggingface.co/meta-llama/Llama-3.2-1B
    "Mistral NeMo 12B": {  # huggingface.co/mistralai/Mistral-Nemo-Base-2407; a Llama in all that is counted
        "model_type": "llama",
        "hidden_size": 5120,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "num_hidden_layers": 40,
        "vocab_size": 131072,
    },
    "Qwen3 0.6B": RECORDED["Qwen3 0.6B"],  # arXiv 2505.09388, table 1; and the next one
    "Qwen3 1.7B": RECORDED["Qwen3 0.6B"] | {"hidden_size": 2048, "intermediate_size": 6144},
}

TRAINED = {  # {name: tokens, GPU-hours, GPU, tokens in a sequence}, by the cards in meta-llama/llama-models
    "Llama 2 7B": {"tokens": 2e12, "hours": 184_320, "gpu": "NVIDIA A100-SXM4-80GB", "s": 4096},
    "Llama 3 8B": {"tokens": 15e12, "hours": 1_300_000, "gpu": "NVIDIA H100 80GB HBM3", "s": 8192},
}
