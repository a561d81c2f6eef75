"""The course's job, once: an 8-billion-parameter model of today, its 70-billion sister, and the batch.  The
hosts are `theory.reference_cluster`'s."""

from __future__ import annotations

from helpers.tools.theory.hardware import HOST, reference_cluster

CARD = "H100 80GB"  # of `theory.HARDWARE`
MEMORY = reference_cluster().memory  # bytes of it that torch can use, and what lies outside its allocator
HOSTS, EACH = 8, HOST  # of the 70 B, and GPUs of each
SEQUENCE = 8192  # tokens
SEQUENCES = 64  # of a step, on all GPUs
_LLAMA_3 = {  # keys of transformers' configuration
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
MODELS = {
    "8 B": _LLAMA_3
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70 B": _LLAMA_3
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
}


def cut(blocks: int, of: str = "8 B") -> str:
    """The name in `MODELS` of a model with so many of its blocks, which it adds."""
    whole = MODELS[of]["num_hidden_layers"]
    if blocks == whole:
        return of
    name = f"{of}, {blocks} of {whole} blocks"
    MODELS[name] = MODELS[of] | {"num_hidden_layers": blocks}
    return name
