"""Experts: capacity, messages, and two groups of parameters that ZeRO divides among different ranks."""

import pytest
from helpers import theory

SHARED, EXPERTS = [1000, 64, 7], [300, 5, 300, 5]


def zero(stage):
    return theory.ZeroConfig(stage=stage, reduce_bucket_size=100)


@pytest.mark.parametrize(
    "tokens, experts, k, factor, least, rows",
    [
        (128, 4, 1, 1.0, 0, 32),
        (128, 4, 2, 1.25, 0, 80),
        (100, 8, 1, 1.5, 0, 19),
        (100, 8, 1, 1.0, 0, 13),
        (4, 8, 1, 1.0, 4, 4),
        (512, 4, 1, 4.0, 0, 512),
    ],
)
def test_an_expert_takes_its_share_of_the_choices_times_the_factor_rounded_up(
    tokens, experts, k, factor, least, rows
):
    assert theory.expert_capacity(tokens, experts, k, factor, least) == rows


def test_bytes_of_a_message_count_every_row_of_every_expert_and_a_layer_has_four():
    assert theory.all_to_all_bytes(4, 32, 64, 4) == 32_768
    assert theory.expert_parallel_wire_bytes(2, 32_768, 4) == 2 * 4 * 32_768 * 3 / 4
    assert theory.expert_parallel_wire_bytes(2, 32_768, 1) == 0


@pytest.mark.parametrize("stage", (0, 1, 2))
@pytest.mark.parametrize("moment", theory.MOMENTS)
def test_a_rank_holds_both_groups_and_one_bucket_and_one_norm(stage, moment):
    together = theory.expert_parallel_bytes(
        SHARED, EXPERTS, zero(stage), ranks=4, ep=2, rank=3, moment=moment
    )
    shared = theory.deepspeed_bytes(SHARED, zero(stage), ranks=4, rank=3, moment=moment)
    experts = theory.deepspeed_bytes(EXPERTS, zero(stage), ranks=2, rank=1, moment=moment)
    for category, count in together.items():
        assert count == shared[category] + (0 if category in ("buffers", "other") else experts[category])


def test_what_adam_holds_of_an_expert_is_divided_by_all_ranks_whatever_ep_is():
    def adams(ep):
        held = theory.expert_parallel_bytes([64], [4096 // ep], zero(1), ranks=4, ep=ep)
        return held["master weights"] + held["optimizer states"]

    assert adams(1) == adams(2) == adams(4)


def test_large_experts_are_stepped_in_groups_each_with_a_counter():
    few, many = (
        theory.expert_parallel_bytes([64], [100_000_000] * count, zero(1), ranks=4, ep=4) for count in (1, 3)
    )
    assert many["optimizer states"] - few["optimizer states"] == 2 * (8 * 100_000_000 + 4)
    assert (
        theory.expert_parallel_bytes([64], [10], zero(0), ranks=4, ep=4)["optimizer states"] == 8 * 74 + 2 * 4
    )


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: theory.expert_capacity(128, 4, choices=5), "from 1 to 4 of 4 experts, not 5"),
        (lambda: theory.expert_capacity(128, 4, factor=0), "must be positive"),
        (
            lambda: theory.expert_parallel_bytes(SHARED, EXPERTS, zero(1), ranks=4, ep=3),
            "ep must divide the 4 ranks",
        ),
        (
            lambda: theory.expert_parallel_bytes(SHARED, EXPERTS, zero(3), ranks=4, ep=2),
            "refuses ZeRO-3: use stage 0, 1 or 2",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_word_on_what_can(call, words):
    with pytest.raises(ValueError, match=words):
        call()
