"""The closed formulas beside rehearsals at sizes that never ran: 70 to 1,008 billion parameters, on up to
4,096 ranks.

What differs between two models of the same shape is how many of the same blocks they have, and each adds the
same.  So two blocks of every model are rehearsed always; `make rehearse-all` rehearses all blocks and prints
a line for each.
"""

import os
from dataclasses import replace

import pytest
import torch
from helpers import models, rehearse, theory
from tests.rehearsal import cases

pytestmark = pytest.mark.ranks
WHOLE = "REHEARSE_ALL" in os.environ
WORDS = {"vocabulary": 50257, "context": 2048}  # a number of words that no number of ranks divides
SIZES = {
    "70B": models.GPTSize(width=8192, layers=80, heads=64, **WORDS),
    "175B": models.GPT3,
    "405B": models.GPTSize(width=16384, layers=126, heads=128, **WORDS),
    "1T": models.GPTSize(width=25600, layers=128, heads=160, **WORDS),
}
BUCKET = 50_000_000  # elements
KEYS = {  # of stage 3, beside DeepSpeed's own
    "": {"stage3_param_persistence_threshold": 0},
    "kept and in sub-groups": {"stage3_param_persistence_threshold": 100_000, "sub_group_size": 20_000_000},
}
FEW = [  # size, ranks, rank, what is rehearsed: (stage, whether blocks are checkpointed, keys)
    ("70B", 64, 63, [(0, True, ""), (2, False, "")]),
    ("175B", 1024, 517, [(1, False, ""), (3, True, "")]),
    ("405B", 4096, 4095, [(3, True, "")]),
    ("1T", 512, 0, [(3, True, "kept and in sub-groups")]),
]
# where time is long: which parameters a rank shares with its neighbours, and who has the padding, depends on
# the rank
MORE = [
    ("70B", 64, 0, [(1, True, ""), (3, False, "")]),
    ("70B", 512, 100, [(1, True, ""), (2, True, ""), (3, True, "kept and in sub-groups")]),
    ("175B", 384, 0, [(1, True, ""), (2, True, "")]),
    ("175B", 1024, 1023, [(2, True, ""), (3, True, "")]),
    ("405B", 2048, 1000, [(1, True, ""), (2, True, "")]),
    ("1T", 4096, 2000, [(2, True, ""), (3, True, "")]),
]


def configuration(stage, keys):
    return cases.keys(stage, accumulation=2, reduce_bucket_size=BUCKET, **(KEYS[keys] if stage == 3 else {}))


def moments(ask):
    """{name: {moment: (categories, peak since the moment before)}} of several cases."""
    found = cases.several(ask)
    return {
        name: {moment: (categories, peak) for moment, categories, peak in report["moments"]}
        for name, report in found.items()
    }


MOMENTS = {
    "backward 1.0": "between micro-batches",
    "backward 1.1": "after backward",
    "step 1.1": "after step",
}  # of the second step


@pytest.mark.parametrize(
    "name, ranks, rank, asked",
    FEW + (MORE if WHOLE else []),
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_the_formulas_are_exact_where_nobody_has_been(name, ranks, rank, asked):
    size = SIZES[name] if WHOLE else replace(SIZES[name], layers=2)
    with torch.device("meta"):
        elements = [parameter.numel() for parameter in models.GPT(size).parameters()]
    ask = {
        case: {"size": size, "config": configuration(case[0], case[2]), "checkpointing": case[1]}
        for case in asked
    }
    rehearsed = rehearse(moments, ranks, rank, {"ask": ask}, device="cuda", timeout=7200)
    for (stage, checkpointing, keys), found in rehearsed.items():
        job = {"config": configuration(stage, keys), "ranks": ranks, "rank": rank, "device": "cuda"}
        for place, moment in MOMENTS.items():
            exact = theory.deepspeed_bytes(elements, moment=moment, **job)
            assert exact | {"activations": 0, "inputs": 0} == found[place][0], f"stage {stage}, {moment}"
        assert theory.step_peak_bytes(elements, **job) == found["step 1.1"][1], (
            f"stage {stage}, the optimizer's step"
        )
        states, step = sum(found["backward 1.1"][0].values()), found["step 1.1"][1]
        peak = max(found[f"{half} 1.1"][1] for half in ("forward", "backward"))
        again = "checkpointed" if checkpointing else "not checkpointed"
        print(
            f"{name} ({sum(elements) / 1e9:,.0f} billion), stage {stage}, rank {rank:,} of "
            f"{ranks:,}, {again}{keys and ', ' + keys}: "
            f"states {states:,}, step {step:,}: all to the byte; forward and backward {peak / 1e9:,.1f} GB"
        )
        if stage < 3:
            assert_planned(
                size, stage, ranks, checkpointing, sum(found["backward 1.0"][0].values()), peak, max(elements)
            )


def assert_planned(size, stage, ranks, checkpointing, states, peak, largest):
    """`ZeroPlan` is coarse on purpose; by how much at most, in gradients of the largest parameter.

    Stage 2 keeps whole the gradients at both ends of a partition, of which the paper's account has a part; on
    many ranks they are most of it.  A backward pass has up to three more that are on their way, and a
    checkpointed block that is complete again.  The plan for its part takes the loss's three tensors beside
    the logits that it counts as kept.
    """
    bucket, gradient = 2 * BUCKET, 2 * largest
    cluster = theory.Cluster(gpus=ranks, memory=80e9, rate=1, link=1)
    plan = theory.ZeroPlan(
        size=size, cluster=cluster, stage=stage, checkpointed=checkpointing, buckets=bucket
    )
    padding_and_norm = 16 * ranks
    ends = 2 * gradient if stage == 2 else 0
    assert 0 <= states - plan.states - (bucket if stage == 1 else 0) <= ends + padding_and_norm
    again = (
        theory.repeated_block_bytes(1, size.context, size.width, size.heads, 2, device="cuda")
        if checkpointing
        else 0
    )
    loss = theory.loss_peak_bytes(1, size.context, size.vocabulary)
    assert -loss <= peak - (plan.states + plan.buckets + plan.each) <= ends + 3 * gradient + again
