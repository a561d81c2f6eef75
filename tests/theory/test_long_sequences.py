"""One sequence on several ranks, and the loss in tiles: predicted, then measured, to the byte.

What ranks that share a sequence really hold and send is compared in lesson 13, which runs with every change.
"""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from helpers import models, theory
from helpers.course.models import GPTSize
from helpers.tools.measure.ledger import Ledger

SIZE = GPTSize(vocabulary=300, context=64, width=64, layers=2, heads=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_peak_of_the_loss_is_twelve_bytes_per_token_and_entry_in_either_dtype(dtype):
    head, x, targets = (
        torch.nn.Linear(1, 1000, bias=False, dtype=dtype),
        torch.randn(2, 40, 1, dtype=dtype),
        torch.randint(1000, (2, 40)),
    )
    with Ledger("cpu") as ledger:
        models.next_token_loss(head(x), targets).backward()
    assert (
        0 <= ledger.peak - theory.loss_peak_bytes(2, 40, 1000) < 5000
    )  # inputs and weights: 4,640 bytes, and a few of the loss itself


def test_tiles_are_rounded_up_to_tokens():
    assert theory.loss_peak_bytes(1, 100, 10, tiles=8) == 12 * 10 * 13
    with pytest.raises(ValueError, match="at least 1"):
        theory.loss_peak_bytes(1, 100, 10, tiles=0)


@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
def test_one_rank_keeps_and_sends_what_one_process_does(kernel):
    plain = theory.gpt_activation_bytes(SIZE, 2, 64, 2, kernel)
    assert theory.ulysses_activation_bytes(SIZE, 2, 64, 2, 1, kernel) == plain
    assert theory.ring_activation_bytes(SIZE, 2, 64, 2, 1) == theory.gpt_activation_bytes(SIZE, 2, 64, 2)
    assert theory.ulysses_wire_bytes(2, 64, 64, 2, 2, 1) == theory.ring_wire_bytes(2, 64, 64, 2, 2, 1) == 0


def test_ulysses_keeps_one_result_of_attention_more_than_a_ring():
    for ranks in (2, 4):
        more = SIZE.layers * 4 * (64 // ranks) * SIZE.width
        assert (
            theory.ulysses_activation_bytes(SIZE, 1, 64, 4, ranks)
            - theory.ring_activation_bytes(SIZE, 1, 64, 4, ranks)
            == more
        )


def test_with_the_explicit_kernel_ulysses_keeps_the_matrices_of_its_own_heads_only():
    one, four = (theory.ulysses_activation_bytes(SIZE, 1, 64, 4, ranks, "explicit") for ranks in (1, 4))
    fused = theory.ulysses_activation_bytes(SIZE, 1, 64, 4, 4)
    assert four - fused == SIZE.layers * (4 * 1 * 64 * 64 + 64 * 64 - 4 * SIZE.heads * 16)
    assert four < one / 3


def test_more_ranks_send_less_by_ulysses_and_as_much_by_a_ring():
    ulysses = [theory.ulysses_wire_bytes(1, 64, 64, 1, 2, ranks) for ranks in (2, 4, 8)]
    ring = [theory.ring_wire_bytes(1, 64, 64, 1, 2, ranks) for ranks in (2, 4, 8)]
    unit = 2 * 64 * 64
    assert ulysses == [2 * unit, 1.5 * unit, 0.875 * unit]
    assert theory.ulysses_wire_bytes(1, 64, 64, 1, 2, 2, checkpointed=True) == 3 * unit
    assert ring == 3 * [6 * unit]


def test_tokens_and_heads_must_divide():
    with pytest.raises(ValueError, match="64 tokens cannot be divided among 3 ranks"):
        theory.ring_activation_bytes(SIZE, 1, 64, 4, 3)
    with pytest.raises(ValueError, match="4 heads cannot be divided among 8 ranks"):
        theory.ulysses_activation_bytes(SIZE, 1, 64, 4, 8)


LLAMA = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_llama_keeps_what_is_predicted(checkpointed):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM._from_config(LlamaConfig(**LLAMA), attn_implementation="sdpa").train()
    if checkpointed:
        models.checkpointed(model)
    ids = torch.randint(40, (3, 16))
    places = torch.arange(16)[None]
    with Ledger("cpu") as ledger:
        ledger.watch(model)
        for tensor in (ids, places):
            ledger.label("inputs", tensor)
        logits = model(ids, position_ids=places, use_cache=False).logits
        kept = ledger.snapshot("after forward")["activations"]
    assert logits.shape == (3, 16, LLAMA["vocab_size"])  # they are as large as what the loss keeps of them
    assert (
        kept == theory.llama_activation_bytes(LLAMA, 3, 16, checkpointed=checkpointed) - 8
    )  # no loss, and no weight of its mean


def test_tiles_save_the_inner_width_of_a_llama_and_its_logits():
    plain, tiled = (theory.llama_activation_bytes(LLAMA, 3, 16, tiled=tiled) for tiled in (False, True))
    assert plain - tiled == 4 * 3 * 16 * (2 * 4 * 20 + 40) + 4
    both = (
        theory.llama_activation_bytes(LLAMA, 3, 16, ranks=2, tiled=tiled, checkpointed=True)
        for tiled in (False, True)
    )
    assert next(both) - next(both) == 4 * 3 * 8 * 40 + 4


def test_few_heads_of_keys_make_exchanges_smaller_until_they_are_copied():
    many = LLAMA | {"num_key_value_heads": 4}
    places = [2 * 8 * 16 * (ranks - 1) / ranks for ranks in (2, 4)]
    sent = [
        [theory.llama_wire_bytes(config, 1, 16, ranks) - own for ranks, own in zip((2, 4), places)]
        for config in (LLAMA, many)
    ]
    assert sent[1] == [theory.ulysses_wire_bytes(1, 16, 24, 2, 4, ranks) for ranks in (2, 4)]
    assert sent[0] == [sent[1][0] * 3 / 4, sent[1][1]]
    assert theory.llama_wire_bytes(LLAMA, 1, 16, 1) == 0
    again = theory.llama_wire_bytes(many, 1, 16, 2, checkpointed=True)
    assert again == theory.ulysses_wire_bytes(1, 16, 24, 2, 4, 2, checkpointed=True) + 2 * places[0]


def test_heads_of_keys_must_divide_or_be_divided():
    with pytest.raises(ValueError, match="6 heads and 3 of keys and values cannot be divided among 2 ranks"):
        theory.llama_activation_bytes(LLAMA | {"num_attention_heads": 6, "num_key_value_heads": 3}, 1, 16, 2)


@pytest.mark.parametrize("again, tiles", [(False, 1), (True, 1), (True, 8)])
def test_the_worst_moment_of_one_process_is_that_of_a_real_step(again, tiles):
    """Token ids and a loss with its factors are left out of the formula, and nothing else."""
    size = GPTSize(vocabulary=1024, context=512, layers=2, width=64, heads=4)
    with Ledger("cpu") as ledger:
        ids = torch.zeros(1, 512, dtype=torch.int64)
        before = ledger.current
        model = models.GPT(size)
        weights = ledger.current - before
        x = model.embedding(ids)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        x, total = model.head.norm(x), 0.0
        for part in x.chunk(tiles, 1):
            run = (
                partial(checkpoint, use_reentrant=False)
                if tiles > 1
                else lambda function, *arguments: function(*arguments)
            )
            total = total + run(
                lambda part: F.cross_entropy(
                    model.head.scores(part).flatten(0, 1), ids[0, : part.shape[1]], reduction="sum"
                ),
                part,
            )
        del x, part
        (total / 512).backward()
        peak = ledger.peak - weights - before
    held = theory.worst_moment_bytes(size, 512, again=again, tiles=tiles)
    assert held["parameters"] == weights and held["optimizer states"] == 2 * weights
    assert abs(peak - held["activations"] - held["other"]) < 100


def test_the_worst_moment_with_recomputed_blocks_is_counted_for_two():
    with pytest.raises(ValueError, match="counted for two layers, not for 3"):
        theory.worst_moment_bytes(GPTSize(layers=3), 64, again=True)
