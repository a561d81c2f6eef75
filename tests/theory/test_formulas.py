"""The formulas against published numbers, against torch's own counts, and against the models themselves."""

import inspect

import pytest
import torch
from helpers import models, theory
from helpers.course.models import GPT2, GPT2_XL, GPT3, GPTSize

# Rajbhandari et al., arXiv 1910.02054, Table 1 (section 5.4): GB per device, stages 1 / 2 / 3, for 7.5B, 128B
# and 1T parameters.
ZERO_TABLE_1 = {
    1: ((120, 120, 120), (2048, 2048, 2048), (16000, 16000, 16000)),
    4: ((52.5, 41.3, 30), (896, 704, 512), (7000, 5500, 4000)),
    16: ((35.6, 21.6, 7.5), (608, 368, 128), (4750, 2875, 1000)),
    64: ((31.4, 16.6, 1.88), (536, 284, 32), (4187, 2218, 250)),
    256: ((30.4, 15.4, 0.47), (518, 263, 8), (4046, 2054, 62.5)),
    1024: ((30.1, 15.1, 0.12), (513, 257, 2), (4011, 2013, 15.6)),
}
CELLS = [
    (ranks, parameters, stage, cell)
    for ranks, columns in ZERO_TABLE_1.items()
    for parameters, column in zip((7.5e9, 128e9, 1e12), columns)
    for stage, cell in zip((1, 2, 3), column)
]


@pytest.mark.parametrize("ranks, parameters, stage, cell", CELLS)
def test_every_cell_of_the_zero_papers_table_1(ranks, parameters, stage, cell):
    gigabytes = sum(theory.ideal_bytes(parameters, ranks, stage).values()) / 1e9
    tolerance = 0.06 if parameters == 7.5e9 else 1  # the first column is rounded, the others are cut off
    assert abs(gigabytes - cell) < tolerance


@pytest.mark.parametrize(
    "name", [name for name in theory.__all__ if inspect.isfunction(getattr(theory, name))]
)
def test_every_formula_says_what_it_takes_and_gives(name):
    function = getattr(theory, name)
    signature = inspect.signature(function)
    assert function.__doc__ and signature.return_annotation is not inspect.Signature.empty
    assert all(
        parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values()
    )


def test_the_table_is_whole():
    assert len(CELLS) == 54


def test_stage_0_is_sixteen_bytes_in_either_dtype():
    assert sum(theory.ideal_bytes(1000, 64, 0, "bf16").values()) == 16_000
    assert sum(theory.ideal_bytes(1000, 64, 0, "fp32").values()) == 16_000


@pytest.mark.parametrize("size, published", [(GPT2, 124_439_808), (GPT2_XL, 1_557_611_200)])
def test_published_parameter_counts(size, published):
    assert theory.gpt_parameters(size) == published


def test_gpt3_has_175_billion_parameters():
    """Brown et al., arXiv 2005.14165, Table 2.1: 175.0B, which counts in units of a whole billion."""
    assert round(theory.gpt_parameters(GPT3) / 1e9) == 175


@pytest.mark.parametrize("size", [GPTSize(), GPTSize(50, 16, 24, 3, 3), GPT2, GPT2_XL])
def test_parameters_of_the_course_gpt(size):
    with torch.device("meta"):
        model = models.GPT(size)
    assert sum(parameter.numel() for parameter in model.parameters()) == theory.gpt_parameters(size)
    block = sum(parameter.numel() for parameter in model.blocks[0].parameters())
    assert block == theory.block_parameters(size.width)


@pytest.mark.parametrize("size, batch, length", [(GPTSize(), 2, 64), (GPTSize(50, 16, 24, 3, 3), 3, 7)])
def test_flops_equal_torchs_counter(size, batch, length):
    from torch.utils.flop_counter import FlopCounterMode

    ids = torch.zeros(batch, length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        loss = models.GPT(size, kernel="explicit")(ids, ids)
    assert counter.get_total_flops() == theory.gpt_flops(size, batch, length)
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert counter.get_total_flops() == theory.training_flops(
        theory.gpt_flops(size, batch, length)
    ) - theory.gpt_flops(size, batch, length)


def test_korthikanti_for_gpt3():
    """arXiv 2205.05198, section 4.1: 5 a s / h is 80 for GPT-3, beside the 34."""
    s, h, a = GPT3.context, GPT3.width, GPT3.heads
    assert theory.korthikanti_block_bytes(1, s, h, a) == s * h * (34 + 80)


@pytest.mark.parametrize(
    "collective, factor",
    [("all_reduce", 1.5), ("reduce_scatter", 0.75), ("all_gather", 0.75), ("broadcast", 0.75), ("send", 1)],
)
def test_wire_bytes_for_four_ranks(collective, factor):
    assert theory.wire_bytes(collective, 1000, 4) == 1000 * factor


def test_a_ring_sends_its_bytes_in_2_n_minus_1_messages():
    """Without latency the time is ideal bytes over bandwidth; without bytes it is a latency per message."""
    assert theory.collective_seconds("all_reduce", 1000, 4, 0, 1e6) == pytest.approx(
        theory.wire_bytes("all_reduce", 1000, 4) / 1e6
    )
    assert theory.collective_seconds("all_reduce", 0, 4, 1e-3, 1e6) == pytest.approx(6e-3)


@pytest.mark.parametrize("stage, units", [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_the_zero_papers_communication(stage, units):
    """Rajbhandari et al., arXiv 1910.02054, section 7: 2 Psi at stages 0 to 2 and 3 Psi at stage 3, times (N
    - 1) / N in a ring."""
    assert theory.zero_wire_bytes(1000, 4, stage) == units * 2 * 1000 * 3 / 4


def test_what_accumulation_and_whole_buckets_add():
    unit = 2 * 1000 * 3 / 4
    assert [theory.zero_wire_bytes(1000, 4, stage, whole_buckets=True) / unit for stage in range(4)] == [
        2,
        3,
        3,
        3,
    ]
    assert [theory.zero_wire_bytes(1000, 4, stage, accumulation=3) / unit for stage in range(4)] == [
        2,
        2,
        4,
        9,
    ]
    assert theory.zero_wire_bytes(1000, 4, 2, accumulation=3, whole_buckets=True) / unit == 7


def test_one_rank_sends_nothing():
    assert all(
        theory.wire_bytes(collective, 1000, 1) == 0
        for collective in theory.COLLECTIVES
        if collective != "send"
    )


@pytest.mark.parametrize(
    "call, word",
    [
        (lambda: theory.ideal_bytes(1, 1, 4), "stage"),
        (lambda: theory.ideal_bytes(1, 0), "ranks"),
        (lambda: theory.ideal_bytes(1, 1, 0, "fp8"), "dtype"),
        (lambda: theory.deepspeed_bytes([1], theory.ZeroConfig(), moment="never"), "moment"),
        (lambda: theory.deepspeed_bytes([1], theory.ZeroConfig(), ranks=2, rank=2), "rank"),
        (lambda: theory.wire_bytes("shout", 1, 2), "collective"),
        (lambda: theory.collective_seconds("all_reduce", 1, 0, 1e-3, 1e9), "ranks"),
        (lambda: theory.zero_wire_bytes(1, 2, 4), "stage"),
        (lambda: theory.construction_peak_bytes([[1]], dtype="fp16"), "bf16"),
        (lambda: theory.construction_peak_bytes([[1]], ranks=0), "ranks"),
    ],
)
def test_bad_input_is_named(call, word):
    with pytest.raises(ValueError, match=word):
        call()
