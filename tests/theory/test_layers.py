"""Activations, kept by layer and in whole: predicted and measured in a real DeepSpeed job, to the byte."""

import pytest
from helpers import launch, models, theory
from helpers.course.models import GPTSize
from tests.support import configuration

pytestmark = pytest.mark.ranks

CASES = [
    (size, batch, length, dtype, kernel)
    for size, batch, length in (
        (GPTSize(), 2, 64),
        (GPTSize(260, 48, 32, 2, 4), 3, 40),
        (GPTSize(300, 128, 96, 1, 2), 1, 128),
    )
    for dtype in ("bf16", "fp32")
    for kernel in ("sdpa", "explicit")
]


def forward(cases, checkpointing=False):
    import deepspeed
    from helpers import corpus
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.saved import SavedActivations

    found = []
    for size, batch, length, dtype, kernel in cases:
        config = configuration(bf16=dtype == "bf16", micro_batch=batch)
        with Ledger() as ledger:
            model = models.build(models.GPT, size, kernel=kernel, checkpointing=checkpointing)
            engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
            ledger.watch(engine)
            with SavedActivations(engine) as saved:
                loss = engine(*corpus.batch(0, batch, length))
            found.append((saved, ledger.snapshot("after forward")["activations"]))
            del loss
    return found


@pytest.fixture(scope="module")
def measured():
    return dict(zip(CASES, launch(forward, ranks=1, arguments={"cases": CASES}, device="cpu")[0]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"width{case[0].width}-{case[3]}-{case[4]}")
def test_activations_of_every_layer(measured, case):
    size, batch, length, dtype, kernel = case
    element = 2 if dtype == "bf16" else 4
    saved, total = measured[case]
    assert saved.under("embedding") == theory.embedding_activation_bytes(length)
    for layer in range(size.layers):
        block = f"blocks.{layer}"
        assert saved.under(f"{block}.attention") == theory.attention_activation_bytes(
            batch, length, size.width, size.heads, element, kernel
        )
        assert saved.under(f"{block}.feed_forward") == theory.feed_forward_activation_bytes(
            batch, length, size.width, element
        )
        assert saved.under(f"{block}.attention_norm") == theory.norm_activation_bytes(
            batch, length, size.width, element
        )
        assert saved.under(block) == theory.block_activation_bytes(
            batch, length, size.width, size.heads, element, kernel
        )
    assert (
        total == saved.total + 4 == theory.gpt_activation_bytes(size, batch, length, element, kernel)
    )  # 4: the loss itself


def test_activations_with_checkpointing():
    cases = [case for case in CASES if case[4] == "sdpa"]
    for (size, batch, length, dtype, _), (_, total) in zip(
        cases, launch(forward, ranks=1, arguments={"cases": cases, "checkpointing": True})[0]
    ):
        assert total == theory.checkpointed_activation_bytes(size, batch, length, 2 if dtype == "bf16" else 4)


def peaks_of_passes(cases):
    """The most that is held in a forward and a backward pass, all kept and checkpointed."""
    from functools import partial

    import torch
    from torch.utils.checkpoint import checkpoint
    from helpers import corpus
    from helpers.tools.measure.ledger import Ledger

    found = []
    for size, batch, length, dtype, checkpointing in cases:
        model = models.build(models.GPT, size).to({"bf16": torch.bfloat16, "fp32": torch.float32}[dtype])
        for block in (
            model.blocks if checkpointing else ()
        ):  # a block is run again to its end, as lesson 02 does it
            block.forward = partial(checkpoint, block.forward, use_reentrant=True)
        rows = corpus.batch(0, batch, length)
        with Ledger("cpu") as ledger:
            ledger.watch(model)
            for tensor in rows:
                ledger.label("inputs", tensor)
            model(*rows).backward()
        found.append(ledger.peak)
    return found


def test_the_peak_of_both_passes_is_at_the_loss_in_the_last_block_or_in_the_first():
    """More than 12 h tokens, fewer, and many logits for the width: each moment wins once, to the byte."""
    small, wide = GPTSize(context=256), GPTSize(context=256, width=128)
    cases = [
        (small, 4, 256, "fp32", False),
        (small, 4, 256, "fp32", True),
        (small, 2, 256, "fp32", True),
        (small, 4, 256, "bf16", True),
    ]
    cases.append((wide, 4, 256, "bf16", True))
    winners = []
    for (*shape, dtype, again), peak in zip(
        cases, launch(peaks_of_passes, ranks=1, arguments={"cases": cases}, device="cpu")[0]
    ):
        moments = theory.pass_peak_bytes(*shape, 2 if dtype == "bf16" else 4, again)
        winners.append(max(moments, key=moments.get))
        assert peak == moments[winners[-1]]
    assert winners == [
        "at the loss",
        "in the last block",
        "in the first block",
        "at the loss",
        "in the first block",
    ]


def backward_of_a_block(shape, heads, element):
    """The most that is held while a block runs again and back, beside its parameters and its input."""
    import torch
    from helpers.tools.measure.ledger import Ledger

    batch, length, width = shape
    block = models.gpt.Block(GPTSize(300, length, width, 1, heads)).to(
        {2: torch.bfloat16, 4: torch.float32}[element]
    )
    x = torch.randn(shape, dtype=next(block.parameters()).dtype, requires_grad=True)
    with Ledger("cpu") as ledger:
        for tensor in (x, *block.parameters()):
            ledger.label("inputs", tensor)
        before = ledger.current
        gradient = torch.ones_like(x)
        block(x).backward(gradient)
        return ledger.peak - before


@pytest.mark.parametrize("element", [2, 4])
def test_a_block_that_is_run_again_and_back(element):
    """Where its last product's gradients are made: the parameters' as well."""
    (batch, length, width), heads = (3, 40, 48), 4
    peak = launch(
        backward_of_a_block,
        ranks=1,
        arguments={"shape": (batch, length, width), "heads": heads, "element": element},
        device="cpu",
    )[0]
    assert peak == theory.repeated_block_bytes(batch, length, width, heads, element) + element * (
        4 * width**2 + width
    )
