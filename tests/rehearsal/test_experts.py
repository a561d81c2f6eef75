"""DeepSpeed's AutoEP through the command: rehearsed ranks beside real ones on the CPU, whose router is made
to spread tokens evenly."""

import re

import pytest
from helpers import launch, preload, rehearse, theory
from helpers.tools.forecast import advising
from helpers.tools.measure.operations import Message
from helpers.tools.rehearsal.axes import Axes
from tests.rehearsal import cases
from tests.rehearsal.divided import ask, keys, trained

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4}
SMALL |= {"intermediate_size": 176, "vocab_size": 256, "max_position_embeddings": 64}
EXPERTS = {"moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2}
EXPERTS |= {"topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
V3 = SMALL | EXPERTS | LATENT | {"v_head_dim": 16, "model_type": "deepseek_v3"}
V2 = V3 | {"model_type": "deepseek_v2", "topk_method": "greedy"}
MIXTRAL = SMALL | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LLAMA = SMALL | {"model_type": "llama"}


def over(ranks, **more):
    return {"expert_parallel": {"enabled": True, "autoep_size": ranks} | more}


def evenly_trained(asked):
    """`trained` by real ranks: their router chooses the experts in turn, and the table of rows is made as a
    GPU makes it.  Numbers are changed in place, by numpy, so that no tensor is made."""
    import numpy
    import torch
    from deepspeed.moe import ep_kernels
    from deepspeed.moe.ep_router import TokenChoiceTopKRouter

    plain = TokenChoiceTopKRouter.forward

    def in_turn(router, x, expert_bias=None):
        scores, selected, counts = plain(router, x, expert_bias)
        turns = numpy.arange(selected.numel()) % router.num_experts
        selected.numpy()[:] = turns.reshape(selected.shape)
        counts.numpy()[:] = numpy.bincount(turns, minlength=router.num_experts)
        return scores, selected, counts

    def fill(counts, starts, offsets, own, ranks, length):
        table = torch.full((length,), -1, dtype=torch.int32)
        for expert in range(own):
            first = int(offsets.numpy()[expert])
            for index in range(expert, ranks * own, own):
                rows, start = int(counts.numpy()[index]), int(starts.numpy()[index])
                table.numpy()[first : first + rows] = numpy.arange(start, start + rows)
                first += rows
        return table

    TokenChoiceTopKRouter.forward, ep_kernels.fill_indices_cpu = in_turn, fill
    return trained(asked)


REAL = {  # name: (a model, DeepSpeed's configuration, tokens of a sequence, the ranks that are rehearsed)
    "DeepSeek-V3, stage 0": (V3, keys(0, **over(4)), 16, (2,)),
    "DeepSeek-V3, stage 1": (V3, keys(1, **over(2)), 16, (0, 3)),
    "DeepSeek-V2, stage 2, a remainder": (V2, keys(2, **over(2)), 15, (1, 2)),
    "DeepSeek-V3, stage 3": (V3, keys(3, **over(2)), 16, (3,)),
}


@pytest.fixture(scope="module")
def libraries():
    preload("transformers.DeepseekV3ForCausalLM", "transformers.DeepseekV2ForCausalLM")


def in_order(report):
    """Without the order in which things were made and sent: ZeRO-3 gathers what it divides over all ranks and
    what it divides over an expert's in the order of a Python set."""
    return report | {"messages": sorted(report["messages"]), "storages": sorted(report["storages"], key=str)}


@pytest.mark.ranks
@pytest.mark.parametrize("name", REAL)
def test_every_figure_is_that_of_real_ranks(name, libraries):
    model, config, sequence, rehearsed_ranks = REAL[name]
    asked = ask(model, config, 4, sequence)
    real = launch(evenly_trained, 4, {"asked": asked}, device="cpu")
    for rank in rehearsed_ranks:
        rehearsed = rehearse(trained, 4, rank, {"asked": asked})
        both = (in_order(real[rank]), in_order(rehearsed)) if asked.stage == 3 else (real[rank], rehearsed)
        assert cases.differences(*both) == {}, f"rank {rank}"
        assert real[rank]["sent"] == rehearsed["sent"] and "all_to_all_single, experts" in rehearsed["sent"]


@pytest.mark.ranks
def test_tokens_that_are_not_spread_evenly_would_be_noticed(libraries):
    asked = ask(V3, keys(1, **over(2)), 4)
    real = launch(trained, 4, {"asked": asked}, device="cpu")[0]  # a router of random weights
    assert real["sent"] != rehearse(trained, 4, arguments={"asked": asked})["sent"]


# --- on a GPU


def a_layer(rows, width, wide):
    """Bytes of every tensor that a GPU makes where two experts get as many rows: reordering them, the
    experts, the order of before, and the backward pass."""
    import torch
    from deepspeed.module_inject.auto_ep_layer import permute_by_local_expert, unpermute_by_local_expert
    from deepspeed.moe.ep_experts import GroupedExperts
    from helpers.tools.measure.ledger import Ledger

    def made(begun):
        return [storage.bytes for storage in ledger.storages[begun:]]

    with Ledger("gpu") as ledger:
        experts = GroupedExperts(width, wide, 2).to(device="gpu", dtype=torch.bfloat16)
        x = torch.zeros(rows, width, device="gpu", dtype=torch.bfloat16, requires_grad=True)
        counts = torch.full((2,), rows // 2, device="gpu", dtype=torch.int32)
        begun = len(ledger.storages)
        moved, indices, aligned, count = permute_by_local_expert(x, counts)
        out = unpermute_by_local_expert(experts(moved, aligned), indices, count)
        out.backward(torch.zeros_like(out))
        return made(begun)


# The same on an H200 (torch 2.11, Triton 3.6, DeepSpeed 0.19.8), counted by the same ledger.
ON_H200 = [
    *(16, 16, 16, 16, 16, 16, 16, 16, 8, 16, 16, 320, 8, 640, 640, 80, 80, 80, 640, 640, 1152, 5120),
    *(8, 7680, 7680, 7680, 5120),
    *(640, 640, 80, 80, 80, 640, 640, 1152, 4096),
    *(4096, 5120, 6144, 7680, 7680, 7680, 6144, 5120, 6144, 5120, 5120, 4096),
]


@pytest.mark.ranks
def test_a_layer_makes_what_it_made_on_a_real_gpu():
    sizes = {"rows": 64, "width": 32, "wide": 48}
    assert rehearse(a_layer, 1, arguments=sizes, device="cuda") == ON_H200


# --- how ranks are divided, and what is refused


def test_a_message_of_an_expert_is_named():
    axes = Axes(data=4, experts=2)
    named = {
        (operation, group): axes.along(Message(operation, 8, group))
        for operation, group in [
            ("all_to_all_single", (0, 1)),
            ("all_reduce", (1, 3)),
            ("all_reduce", (0, 1, 2, 3)),
        ]
    }
    assert list(named.values()) == ["experts", "data of an expert", "data"]
    assert str(axes) == "4 ranks = 4 data, experts divided over 2"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_ranks_that_differ_most_are_found(stage):
    """Beside the exact formula, for every rank: for the experts it counts the ranks that have the same."""
    dense, experts, ranks = [5000, *[64, 4096] * 5, 5000], [9000, 300, 9000], 12
    config = keys(stage) | {"zero_optimization": {"stage": stage, "reduce_bucket_size": 1000}}

    def held(sizes, rank, ranks):
        parts = theory.deepspeed_bytes(sizes, config=config, ranks=ranks, rank=rank, device="cuda")
        return sum(parts.values())

    every = [held(dense, rank, ranks) + held(experts, rank // 3, ranks // 3) for rank in range(ranks)]
    found = {"sizes": dense, "expert_sizes": experts, "whole": []}
    chosen = Axes(ranks, experts=3).most_different(found, stage)
    assert {max(every), min(every)} <= {every[rank] for rank in chosen} and 0 in chosen


REFUSED = [  # a model, keys of DeepSpeed's configuration, ranks, what is said
    (V3, over(4), 6, "expert_parallel.autoep_size 4 does not divide 6 ranks"),
    (V3, over(3), 6, "does not divide DeepseekV3ForCausalLM: ValueError: num_experts=8 in layer"),
    (LLAMA, over(2), 4, "AutoEP finds no experts in LlamaForCausalLM: leave expert_parallel out"),
    (V3, over(2, comm_backend="deepep", comm_max_tokens_per_rank=8), 4, "comm_backend is not rehearsed"),
    (V3, over(2, combine_impl="fused_weighted_sum"), 4, "combine_impl 'fused_weighted_sum' is not rehearsed"),
    (V3, over(2) | {"use_data_before_expert_parallelism": True}, 4, "use_data_before_expert_parallelism"),
    (V3, over(2) | {"tensor_parallel": {"autotp_size": 2}}, 4, "together are not rehearsed"),
]


@pytest.mark.parametrize("model, more, ranks, words", REFUSED, ids=[words[:40] for *_, words in REFUSED])
def test_what_cannot_be_divided_is_refused(model, more, ranks, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        ask(model, keys(1, **more), ranks)
    assert "\n" not in str(refused.value)


def test_where_deepspeed_and_transformers_do_not_fit_each_other_that_is_said():
    """AutoEP calls a registry of transformers, which newer ones have changed."""
    from transformers.utils import output_capturing

    registry = output_capturing._CAN_RECORD_REGISTRY
    if type(registry) is dict:
        assert ask(MIXTRAL, keys(1, **over(2)), 4).axes.experts == 2
        return
    with pytest.raises(ValueError, match="AutoEP of DeepSpeed .* does not divide Mixtral"):
        ask(MIXTRAL, keys(1, **over(2)), 4)


def test_what_is_assumed_is_said_and_advice_keeps_the_axes():
    asked = ask(V3, keys(1, **over(2)), 4)
    assert any("every expert is assumed to get as many tokens" in note for note in asked.notes)
    assert {change.of(asked).axes.experts for change in advising.changes(asked)} == {2}
