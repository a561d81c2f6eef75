"""Configurations of published models, as their makers gave them to transformers, and of a small Mixtral."""

from __future__ import annotations

from helpers.course.job.reference import MODELS

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
    "Llama 3.2 1B": {  # huggingface.co/meta-llama/Llama-3.2-1B
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
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
    "Qwen3 0.6B": {  # arXiv 2505.09388, table 1
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "Gemma 2 2B": {
        "model_type": "gemma2",
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    },
    "Phi 3 mini": {
        "model_type": "phi3",
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
    },
    "OLMo 2 1B": {
        "model_type": "olmo2",
        "vocab_size": 100352,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 4096,
    },
    "Mixtral, 1.2B": {  # in nobody's shape
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
}
PUBLISHED["Qwen3 1.7B"] = PUBLISHED["Qwen3 0.6B"] | {"hidden_size": 2048, "intermediate_size": 6144}

TRAINED = {  # {name: tokens, GPU-hours, GPU, tokens in a sequence}, by the cards in meta-llama/llama-models
    "Llama 2 7B": {"tokens": 2e12, "hours": 184_320, "gpu": "NVIDIA A100-SXM4-80GB", "s": 4096},
    "Llama 3 8B": {"tokens": 15e12, "hours": 1_300_000, "gpu": "NVIDIA H100 80GB HBM3", "s": 8192},
}
