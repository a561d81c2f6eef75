"""Fine-tuning with frozen weights and adapters (LoRA), and offload: what a rank holds, and what a forward
pass keeps.  Arguments that are not explained here are those of `layers` and `model_states`.

LoRA (Hu et al., arXiv 2106.09685, section 4.1) freezes a matrix W of shape (outputs, inputs) and trains a
product beside it: W + (alpha / r) B A, with A of shape (r, inputs) and B of shape (outputs, r).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..whole import check_choice, whole
from .gpt_size import GPTSize, of_gpts
from .layers import (
    BF16,
    attention_activation_bytes,
    head_activation_bytes,
    norm_activation_bytes,
)
from .model_states import (
    ADAM,
    COUNTER,
    MASTER,
    MOMENTS,
    NORM,
    _ceil,
    _check_job,
    _gathered,
    _in_order,
    _sub_groups,
    deepspeed_bytes,
    partition,
)
from .zero_config import ZeroConfig

OFFLOADED_NORM = 4  # bytes: the norm of offloaded gradients, fp32 at every stage
# bytes: the smallest tensor that DeepSpeed writes to a disk; files are padded to whole blocks
SWAPPED, FILE_BLOCK = 2**20, 1024
NF4_BLOCK, NF4_CODE = 64, 64  # elements that share a scale; bytes of a matrix's 16 values in fp32


def lora_parameters(inputs: int, outputs: int, adapter_rank: int) -> int:
    """r (inputs + outputs) elements: A and B beside one matrix (arXiv 2106.09685, section 4.1)."""
    whole(adapter_rank, "adapter_rank")
    return adapter_rank * (inputs + outputs)


def frozen_bytes(elements: Sequence[int], config: ZeroConfig | dict, *, ranks: int = 1) -> int:
    """Bytes of frozen parameters, of `elements` each, on a rank, to the byte for DeepSpeed 0.19: no gradient,
    no master copy, no optimizer state, at any moment.

    Stages 0 to 2 replicate them: e bytes for each.  Stage 3 divides every parameter, rounded up to a multiple
    of the ranks, and keeps small ones gathered as it does with trained ones.
    """
    config = ZeroConfig.of(config)
    _check_job(ranks, 0)
    if config.stage < 3:
        return config.element_bytes * sum(elements)
    shards = sum(_ceil(count, ranks) for count in elements)
    return config.element_bytes * (shards + _gathered(elements, config, ranks))


def fine_tuning_bytes(
    frozen: Sequence[int],
    trained: Sequence[int],
    config: ZeroConfig | dict,
    *,
    ranks: int = 1,
    rank: int = 0,
    moment: str = "between micro-batches",
    device: str = "cpu",
) -> dict[str, int]:
    """What a rank holds when some parameters are frozen, {category: bytes}: `deepspeed_bytes` of the trained
    ones, and the frozen ones' weights; both in the model's order and in the configuration's dtype."""
    held = deepspeed_bytes(trained, config, ranks=ranks, rank=rank, moment=moment, device=device)
    return held | {"parameters": held["parameters"] + frozen_bytes(frozen, config, ranks=ranks)}


def quantised_bytes(elements: Sequence[int], config: ZeroConfig | dict, *, ranks: int = 1) -> dict[str, int]:
    """Frozen matrices, of `elements` each, in four bits (NF4) on a rank, without double quantisation:
    {"parameters", "absmax", "code": bytes}, 1/2 + 4/64 bytes per element and 64 per matrix.

    Two weights share a byte; each block of 64 has its largest absolute value (`absmax`), and each matrix the
    16 numbers that the codes stand for, both in fp32.  Stage 3 shards the codes, which are a parameter to it,
    and not the rest (Dettmers et al., QLoRA, arXiv 2305.14314, section 3; bitsandbytes 0.50).
    """
    config = ZeroConfig.of(config)
    _check_job(ranks, 0)
    packed = [_ceil(count, 2) for count in elements]
    held = sum(packed)
    if config.stage == 3:
        held = sum(_ceil(count, ranks) for count in packed) + _gathered(packed, config, ranks)
    return {
        "parameters": held,
        "absmax": 4 * sum(_ceil(count, NF4_BLOCK) for count in elements),
        "code": NF4_CODE * len(elements),
    }


def offload_bytes(
    trained: Sequence[int],
    config: ZeroConfig | dict,
    *,
    frozen: Sequence[int] = (),
    ranks: int = 1,
    rank: int = 0,
    moment: str = "between micro-batches",
    accumulates: bool = True,
) -> dict[str, dict[str, int]]:
    """What a rank holds on its device and in the host's memory when the optimizer is offloaded, from its
    second step on: {"device": {category: bytes}, "host": {category: bytes}}.

    Ren et al. (ZeRO-Offload, arXiv 2101.06840, section 4.1) leave the bf16 parameters on the device and move
    the rest.  Derived from DeepSpeed 0.19's source, in bf16 with torch's AdamW; `config` need not say that
    the optimizer is offloaded.  With P the elements of a rank's partition and L the largest trained
    parameter, the host has 12 P of master weights and Adam, 4 P of fp32 gradients that are never given back,
    and 2 P more: at stages 1 and 2 a buffer for the new parameters, at stage 3 the gradients as they come.
    Stages 1 and 2 have a buffer of 2 L bytes on either side, and stage 2 keeps on the host, in bf16, every
    gradient that touches its partition.  At stage 1 gradients and the bucket stay on the device between
    micro-batches, which a step that `accumulates` has several of.  Moments are the first two of `MOMENTS`.
    """
    config = ZeroConfig.of(config, offloaded=True)
    if config.stage == 0 or config.dtype != "bf16" or config.sums_in_fp32:
        raise ValueError(f"offload_bytes covers stages 1 to 3 in bf16, not {config}")
    check_choice("moment", moment, MOMENTS[:2])
    held = fine_tuning_bytes(frozen, trained, config, ranks=ranks, rank=rank, moment=moment)
    if config.stage == 3:
        groups = _sub_groups(trained, config, ranks)
        part, stepped, sides, buffer, kept = sum(groups), len(groups), 0, 0, BF16 * sum(groups)
    else:
        trained = _in_order(trained, config, ranks)
        part, pieces = partition(trained, ranks, rank)
        stepped, sides, buffer, kept = 1, BF16 * max(trained), BF16 * part, 0
        if config.stage == 2 and accumulates:
            kept = BF16 * sum(trained[index] for index in pieces)
    return {
        "device": {
            "parameters": held["parameters"],
            "gradients": held["gradients"] if config.stage == 1 else 0,
            "buffers": held["buffers"] + sides,
            "other": OFFLOADED_NORM + held["other"] - NORM[config.stage],
        },
        "host": {
            "gradients": 4 * part + kept,
            "master weights": MASTER * part,
            "optimizer states": ADAM * part + COUNTER * stepped,
            "buffers": buffer + sides,
        },
    }


def disk_bytes(
    trained: Sequence[int], config: ZeroConfig | dict, *, ranks: int = 1, rank: int = 0, buffer_count: int = 5
) -> tuple[dict[str, int], list[int]]:
    """What a rank holds after a step of stage 3 whose optimizer is offloaded to a disk (`"device": "nvme"`):
    ({category: bytes in memory}, [bytes of each file, the smallest first]).

    Rajbhandari et al. (ZeRO-Infinity, arXiv 2104.07857, section 5.1) keep the optimizer's states on the disk
    and bring them in parts.  Derived from DeepSpeed 0.19's `swap_tensor`, in bf16 on a CPU with torch's
    AdamW: three files for each sub-group, of master weights and Adam's two means, padded to whole KiB;
    `buffer_count` buffers of the largest sub-group in fp32, for ever.  A sub-group whose master weights take
    less than 1 MiB stays in memory, with 4 bytes more for each of its elements of fp32 gradients.
    """
    config = ZeroConfig.of(config, offloaded=True)
    if config.stage != 3:
        raise ValueError(f"disk_bytes covers stage 3, not {config}: below it DeepSpeed writes no files")
    held = deepspeed_bytes(trained, config, ranks=ranks, rank=rank, moment="after step")
    groups = _sub_groups(trained, config, ranks)
    written = [count for count in groups if MASTER * count >= SWAPPED]
    kept = sum(groups) - sum(written)
    buffer = _ceil(MASTER * max(groups), FILE_BLOCK) * FILE_BLOCK
    in_memory = held | {
        "gradients": held["gradients"] + 4 * kept,
        "master weights": MASTER * kept,
        "optimizer states": ADAM * kept + COUNTER * len(groups),
        "buffers": held["buffers"] + buffer_count * buffer,
        "other": OFFLOADED_NORM + held["other"] - NORM[3],
    }
    return in_memory, sorted(3 * [_ceil(MASTER * count, FILE_BLOCK) * FILE_BLOCK for count in written])


@of_gpts
def lora_activation_bytes(
    size: GPTSize,
    batch: int,
    sequence: int,
    adapter_rank: int,
    element_bytes: int,
    keeps_frozen_inputs: bool = False,
) -> int:
    """Bytes kept between the forward and the backward pass of a GPT whose only trained parameters are
    adapters beside query, key and value.

    11 e s b h + 4 e s b + 4 a s b + r e s b in each block.  A linear layer keeps its input for the gradient
    of its weights; without that gradient the feed-forward keeps only the four widths before the GELU, 4
    instead of 9 e s b h.  Attention keeps all of its 5: its input is now the adapter's, the rest its kernel
    needs.  The adapter keeps A's result, r e s b.  Nothing before the first adapter needs a gradient, so that
    the first norm keeps nothing, nor does the embedding; and the head's frozen matrix needs no input.

    DeepSpeed's replacement of linear layers at stage 3 (`memory_efficient_linear`, its default) keeps frozen
    inputs, those of both matrices of the feed-forward and of the head, too.
    """
    shape, tokens = (batch, sequence, size.width), batch * sequence
    unit, norm = element_bytes * tokens * size.width, norm_activation_bytes(*shape, element_bytes)
    block = 2 * norm + attention_activation_bytes(*shape, size.heads, element_bytes)
    block += (9 if keeps_frozen_inputs else 4) * unit + adapter_rank * element_bytes * tokens
    head = head_activation_bytes(*shape, size.vocabulary, element_bytes)
    return size.layers * block - norm + head - (0 if keeps_frozen_inputs else unit)
