"""A step of Llama and Qwen3 beside rehearsals of transformers' own: states, the highest moments with what is
kept for the backward pass, and messages.

Two blocks of every model are always enough, for what another adds is the same; REHEARSE_ALL (`make
rehearse-all`) rehearses every case.
"""

import itertools
import os

import pytest
from helpers import rehearse, theory
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.question import ask
from tests.support import configuration
from tests.theory.test_llama import SHAPES, config

pytestmark = pytest.mark.ranks
RANKS, SEQUENCE, BUCKET = 64, 512, 50_000_000
SCALAR = 4  # bytes: a number of the loss, which some moments have no more
NORM = 8 + 2 + 8  # bytes of the messages with which all ranks agree on the gradients' norm and overflow
NAMES = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
FEW = [
    ("Llama-3-8B", 0, True, 1),
    ("Llama-3-8B", 1, False, 2),
    ("Llama-3-8B", 2, True, 2),
    ("Llama-3-8B", 3, False, 2),
    ("Qwen3-0.6B", 2, False, 1),
    ("Qwen3-8B", 3, True, 2),
]
ALL = list(itertools.product(SHAPES, range(4), (False, True), (2,)))


def job(stage, micro_batches):
    """DeepSpeed's configuration, with torch's fused Adam."""
    keys = configuration(stage, accumulation=micro_batches, reduce_bucket_size=BUCKET)
    keys["optimizer"]["params"]["fused"] = True
    return keys


@pytest.mark.parametrize("name, stage, again, micro_batches", ALL if "REHEARSE_ALL" in os.environ else FEW)
def test_a_step_is_that_of_a_rehearsal(name, stage, again, micro_batches):
    shape = config(name, num_hidden_layers=2)
    size, keys = theory.LlamaSize.of(shape), job(stage, micro_batches)
    counts = theory.elements(size)
    rank = theory.fullest_rank(counts, RANKS)
    question = ask(shape.to_dict(), keys, RANKS, SEQUENCE, checkpointing=again)
    told = rehearse(two_steps, RANKS, rank, {"question": question}, device="cuda", asked=[])

    place = {"ranks": RANKS, "rank": rank, "device": "cuda", "fused": True}
    moment = "between micro-batches" if micro_batches > 1 else "after backward"
    states = theory.deepspeed_bytes(counts, keys, moment=moment, **place)
    frequencies = 4 * size.head_width
    # the phase "step" of an earlier micro-batch begins with all gradients
    assert {kind: told["states"][kind] for kind in states} == states | {
        "buffers": states["buffers"] + frequencies
    }
    found = theory.llama_moments(
        size, 1, SEQUENCE, keys, ranks=RANKS, checkpointed=again, micro_batches=micro_batches
    )
    moments = {moment: sum(sizes.values()) for moment, sizes in found.items()}
    peaks = {phase: sum(told["peaks"][phase].values()) for phase in ("forward", "backward", "step")}
    assert abs(max(moments.values()) - max(peaks.values())) <= SCALAR
    assert abs(max(moments["loss"], moments["backward"]) - peaks["backward"]) <= SCALAR
    if micro_batches == 1:
        assert moments["step"] == peaks["step"]

    sent = dict.fromkeys(told["sent"], 0)
    messages = theory.step_messages(
        sum(counts), size.layers, theory.ZeroConfig.of(keys), RANKS, micro_batches
    )
    if stage == 3:
        gathered = theory.gathered_bytes(size, keys, RANKS, again, micro_batches)
        messages = [("all", "all_gather", gathered, 1), *messages[2:]]
    for _, operation, total, _ in messages:
        sent[NAMES.get(operation, operation)] += theory.wire_bytes(operation, total, RANKS)
    for operation, total in sent.items():
        assert 0 <= told["sent"][operation] - total <= NORM, operation


def test_a_plan_has_the_moments_of_its_fullest_rank():
    size = theory.LlamaSize.of(config("Llama-3-8B"))
    plan = theory.Plan(size=size, gpus=8, batch=16, sequence=8192, stage=2, checkpointed=True)
    keys = theory.ZeroConfig(stage=2)
    exact = theory.llama_moments(size, 1, 8192, keys, ranks=8, checkpointed=True, micro_batches=2)
    assert theory.moment_parts(plan) == exact
    rank = theory.fullest_rank(theory.elements(size), 8)
    assert exact == theory.llama_moments(
        size, 1, 8192, keys, ranks=8, rank=rank, checkpointed=True, micro_batches=2
    )
