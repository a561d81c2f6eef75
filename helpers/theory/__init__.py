"""Every formula of the course, as small pure functions of plain numbers: predict first, then measure.

`layers`: parameters, FLOPs and activations of a transformer.  `model_states`: what a rank holds under ZeRO stages 0 to 3, by the
paper and to DeepSpeed's last byte, of a `zero_config`.  `fine_tuning`: the same with frozen weights and adapters.  `construction`: what it holds
while the model is built.  `communication`: bytes that a collective must move.  `tensor_parallel`: one layer on several ranks.  `pipeline`:
consecutive layers on consecutive ranks.  `long_sequences`: one sequence on several ranks, and the loss in tiles.
"""

from helpers.theory.communication import COLLECTIVES, all_reduce_seconds, wire_bytes, zero_wire_bytes
from helpers.theory.construction import construction_peak_bytes
from helpers.theory.fine_tuning import (
    disk_bytes,
    fine_tuning_bytes,
    frozen_bytes,
    lora_activation_bytes,
    lora_block_activation_bytes,
    lora_parameters,
    offload_bytes,
    quantised_bytes,
)
from helpers.theory.layers import (
    attention_activation_bytes,
    attention_flops,
    attention_parameters,
    block_activation_bytes,
    block_flops,
    block_parameters,
    checkpointed_activation_bytes,
    embedding_activation_bytes,
    embedding_parameters,
    feed_forward_activation_bytes,
    feed_forward_flops,
    feed_forward_parameters,
    gpt_activation_bytes,
    gpt_flops,
    gpt_parameters,
    head_activation_bytes,
    korthikanti_block_bytes,
    norm_activation_bytes,
    norm_parameters,
    training_flops,
)
from helpers.theory.long_sequences import (
    loss_peak_bytes,
    ring_activation_bytes,
    ring_wire_bytes,
    ulysses_activation_bytes,
    ulysses_wire_bytes,
)
from helpers.theory.model_states import MOMENTS, deepspeed_bytes, ideal_bytes, step_peak_bytes
from helpers.theory.pipeline import (
    bubble_fraction,
    micro_batches_in_flight,
    pipeline_activation_bytes,
    pipeline_held_bytes,
    pipeline_stage_parameters,
    pipeline_wire_bytes,
    zero_bubble_fraction,
)
from helpers.theory.tensor_parallel import (
    tensor_parallel_activation_bytes,
    tensor_parallel_block_activation_bytes,
    tensor_parallel_block_parameters,
    tensor_parallel_parameters,
    tensor_parallel_wire_bytes,
)
from helpers.theory.zero_config import ZeroConfig

__all__ = [
    "COLLECTIVES",
    "MOMENTS",
    "ZeroConfig",
    "all_reduce_seconds",
    "attention_activation_bytes",
    "attention_flops",
    "attention_parameters",
    "block_activation_bytes",
    "block_flops",
    "block_parameters",
    "bubble_fraction",
    "checkpointed_activation_bytes",
    "construction_peak_bytes",
    "deepspeed_bytes",
    "disk_bytes",
    "embedding_activation_bytes",
    "embedding_parameters",
    "feed_forward_activation_bytes",
    "feed_forward_flops",
    "feed_forward_parameters",
    "fine_tuning_bytes",
    "frozen_bytes",
    "gpt_activation_bytes",
    "gpt_flops",
    "gpt_parameters",
    "head_activation_bytes",
    "ideal_bytes",
    "korthikanti_block_bytes",
    "lora_activation_bytes",
    "lora_block_activation_bytes",
    "lora_parameters",
    "loss_peak_bytes",
    "micro_batches_in_flight",
    "norm_activation_bytes",
    "norm_parameters",
    "offload_bytes",
    "pipeline_activation_bytes",
    "pipeline_held_bytes",
    "pipeline_stage_parameters",
    "pipeline_wire_bytes",
    "quantised_bytes",
    "ring_activation_bytes",
    "ring_wire_bytes",
    "step_peak_bytes",
    "tensor_parallel_activation_bytes",
    "tensor_parallel_block_activation_bytes",
    "tensor_parallel_block_parameters",
    "tensor_parallel_parameters",
    "tensor_parallel_wire_bytes",
    "training_flops",
    "ulysses_activation_bytes",
    "ulysses_wire_bytes",
    "wire_bytes",
    "zero_bubble_fraction",
    "zero_wire_bytes",
]
