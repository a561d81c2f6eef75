"""Temporaries of a rehearsed rank by name: sizes that arithmetic gives, every byte named once, and next to
nothing left over."""

import pytest
from helpers import rehearse
from helpers.tools.measure.held import MODEL_STATES
from helpers.tools.rehearsal import question
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.naming import GATHERED, LOGITS, OTHER, TRANSIENT, Made, named
from helpers.tools.rehearsal.rehearsing import RehearsalError

VOCABULARY, WIDTH, BLOCKS, TOKENS, RANKS = 8192, 256, 6, 1024, 4
LLAMA = {"model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 768, "vocab_size": VOCABULARY}
LLAMA |= {"num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2}


def parts(stage, checkpointing=True, sums="bf16", tokens=TOKENS):
    """What a rank's rehearsal returned."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": sums},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 1_000_000},
    }
    asked = question.ask(LLAMA, config, RANKS, tokens, checkpointing=checkpointing)
    return rehearse(two_steps, RANKS, 0, {"question": asked}, device="cuda", asked=[])


@pytest.mark.ranks
@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_every_byte_has_a_name_and_next_to_none_is_other(stage):
    report = parts(stage)
    for phase, held in report["parts"].items():
        assert set(held) <= {*MODEL_STATES, *TRANSIENT}
        assert sum(held.values()) == sum(report["peaks"][phase].values())
        if phase != "building":
            assert held.get(OTHER, 0) < 0.005 * sum(held.values())


@pytest.mark.ranks
def test_logits_gathered_weights_and_gradients_in_fp32_have_the_bytes_of_arithmetic():
    report, logits = parts(3), TOKENS * VOCABULARY
    shard = report["elements"] / RANKS
    assert report["parts"]["forward"][LOGITS] == (2 + 4 + 4) * logits  # in bf16, in fp32, and their softmax
    assert report["parts"]["backward"][LOGITS] == 3 * 4 * logits
    assert report["parts"]["forward"][GATHERED] >= 2 * VOCABULARY * WIDTH  # the head's
    assert report["parts"]["step"]["gradients in fp32"] == pytest.approx(4 * shard, rel=0.01)
    assert report["parts"]["step"]["flattened gradients"] == pytest.approx(2 * shard, rel=0.01)


@pytest.mark.ranks
def test_sums_in_fp32_at_stage_1_are_copied_to_be_sent():
    report = parts(1, sums="fp32", tokens=64)
    assert report["parts"]["backward"]["copy to be sent"] == 2 * report["elements"]


@pytest.mark.ranks
def test_some_blocks_are_checkpointed():
    """Each that is not keeps as many bytes as any other."""
    kept = [parts(1, blocks)["parts"]["forward"]["activations"] for blocks in (2, 4, BLOCKS, True)]
    assert kept[0] - kept[1] == kept[1] - kept[2] > 0 and kept[2] == kept[3]
    with pytest.raises(RehearsalError, match="7 blocks cannot be checkpointed: this model has 6"):
        parts(1, BLOCKS + 1)


def made(shape=(8, 8), phase="step", operation="mul", dtype="bfloat16", folder="zero", function="step"):
    return Made(operation, dtype, shape, phase, folder, function)


@pytest.mark.parametrize(
    "category, how, name",
    [
        ("other", None, "other"),
        ("other", made(phase="building"), "other"),
        ("parameters", made(phase="building"), "parameters"),
        ("parameters", made(phase="backward"), GATHERED),
        ("gradients", made((8, VOCABULARY)), "gradients"),
        ("buffers", made(), "bucket"),
        ("activations", made((8, VOCABULARY)), LOGITS),
        ("other", made((8, VOCABULARY), "backward"), LOGITS),
        ("inputs", made(), "activations"),
        ("other", made(phase="backward"), "gradients of activations"),
        ("other", made(function="allreduce_bucket"), "copy to be sent"),
        ("other", made(folder="optim"), "Adam's temporaries"),
        ("other", made(dtype="float64"), "norm in fp64"),
        ("other", made(operation="cat", dtype="float32"), "flattened gradients"),
        ("other", made(dtype="float32"), "gradients in fp32"),
        ("other", made(), "other"),
        ("other", made(phase="forward"), "other"),
    ],
)
def test_names(category, how, name):
    assert named(category, how, VOCABULARY) == name
