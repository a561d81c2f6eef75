"""FLOPs per token, rooflines and a step's time: against numbers worked by hand, published ones, and the
operators that torch dispatches."""

import json
from dataclasses import replace

import pytest
import torch
from helpers import launch, models, theory
from helpers.course.models import GPT2_XL, GPTSize
from helpers.tools.theory import step_counts, step_time
from tests.operators import Operators
from tests.support import configuration

MACHINE = theory.MachineConstants(
    matrix={"bf16": {1024: 100e12}, "fp32": {1024: 10e12}},
    memory=1e12,
    launch=0.0,
    latency=1e-5,
    bandwidth=1e11,
)


# --- FLOPs per token


def test_six_n_and_the_scores_of_attention():
    size, sequence = GPTSize(layers=3, width=8, heads=2), 16
    weights, scores = 2 * theory.gpt_parameters(size), 4 * 3 * 8 * 16
    assert theory.flops_per_token(size, sequence, "forward") == weights + scores
    assert theory.flops_per_token(size, sequence) == 3 * (weights + scores)
    assert theory.flops_per_token(size, sequence, "checkpointed step") == 4 * (weights + scores)
    assert theory.flops_per_token(size, sequence, causal=True) == 3 * (weights + scores / 2)


def test_they_are_the_products_of_the_model_but_for_what_is_no_matrix():
    """Norms and biases count as parameters, and positions, all less than one percent here."""
    whole = theory.training_flops(theory.gpt_flops(GPT2_XL, 1, 1024)) / 1024
    assert theory.flops_per_token(GPT2_XL, 1024) == pytest.approx(whole, rel=0.005)


def test_mfu():
    """1.56 B at 30,000 tokens per second on a GPU of 989 TFLOP/s: 6 N is 9.35 GFLOP and attention 0.94, by
    hand."""
    assert theory.mfu(GPT2_XL, 1024, 30_000, 989e12) == pytest.approx(
        30_000 * (9.346e9 + 0.9437e9) / 989e12, rel=1e-3
    )


# --- messages and pipelines


@pytest.mark.parametrize(
    "collective, seconds",
    [
        ("all_reduce", 6 * 1.25),
        ("all_gather", 3 * 1.25),
        ("reduce_scatter", 3 * 1.25),
        ("all_to_all", 3 * 1.25),
        ("broadcast", 4),
        ("send", 2),
    ],
)
def test_every_collective_among_four_ranks(collective, seconds):
    """1,000 bytes at a second of latency and 1,000 bytes per second: a part of 250 bytes takes 1.25 s, the
    whole 2 s."""
    assert theory.collective_seconds(collective, 1000, 4, 1, 1000) == pytest.approx(seconds)


def test_one_rank_needs_no_time():
    alone = [
        theory.collective_seconds(name, 1000, 1, 1, 1000) for name in theory.COLLECTIVES if name != "send"
    ]
    assert alone == [0] * len(alone)


def test_what_hides_behind_what():
    assert [theory.hidden_fraction(*pair) for pair in ((1, 4), (4, 1), (1, 0))] == [0.25, 1, 1]
    size, tokens, rate = GPT2_XL, 4096, 400e12  # lesson 09's rule: F / T
    parameters = theory.gpt_parameters(size)
    assert theory.hiding_bandwidth(6 * parameters * tokens, 6 * parameters, rate) == pytest.approx(
        rate / tokens
    )


def test_a_bubble_in_seconds():
    """Four stages, eight micro-batches of 1 s and 2 s: 24 s of work and three idle slots of 3 s; half of them
    with two chunks."""
    assert theory.pipeline_seconds(4, 8, 1, 2) == 33
    assert theory.pipeline_seconds(4, 8, 1, 2, chunks=2) == 28.5
    assert 9 / theory.pipeline_seconds(4, 8, 1, 2) == pytest.approx(theory.bubble_fraction(4, 8))


# --- rooflines


def test_the_roofline_of_a_product():
    """Two 1000 x 1000 matrices in bf16: 2 GFLOP and 6 MB, so 333 FLOPs per byte."""
    flops, moved = theory.matrix_flops(1000, 1000, 1000), theory.matrix_bytes(1000, 1000, 1000, 2)
    assert (flops, moved) == (2e9, 6e6)
    assert theory.arithmetic_intensity(flops, moved) == pytest.approx(1000 / 3)
    assert theory.ridge(100e12, 1e12) == 100
    assert (
        theory.roofline_rate(50, 100e12, 1e12) == 50e12 and theory.roofline_rate(200, 100e12, 1e12) == 100e12
    )
    assert theory.roofline_seconds(2e9, 6e6, 100e12, 1e12) == 2e-5
    assert theory.matrix_seconds(1000, 1000, 1000, MACHINE) == 2e-5
    assert theory.matrix_seconds(1, 1000, 1000, MACHINE) == pytest.approx(
        2.004e-6
    )  # a vector: the matrix is read, at 1 TB per second


def test_matrix_rates_between_sizes_lie_on_a_line_of_logarithms():
    machine = replace(MACHINE, matrix={"bf16": {100: 1e12, 10_000: 4e12}}, misaligned={"bf16": 5e11})
    assert (
        machine.matrix_rate(8000, 1000, 4000) == machine.matrix_rate(1000, 8000, 4000) == pytest.approx(2e12)
    )  # by its smallest side
    assert machine.matrix_rate(8, 8, 8) == 1e12 and machine.matrix_rate(10**5, 10**5, 10**5) == 4e12
    assert machine.matrix_rate(1000, 1000, 1001) == 5e11 and machine.peak() == 4e12
    assert (
        machine.attention_rate() == 4e12
        and replace(machine, attention={"bf16": 7e11}).attention_rate() == 7e11
    )


def test_constants_travel_as_json():
    machine = replace(MACHINE, name="a machine", attention={"bf16": 1e12}, misaligned={"bf16": 1e12})
    assert theory.MachineConstants.from_dict(json.loads(json.dumps(machine.to_dict()))) == machine
    for values, words in (
        ({"memory": 1}, "missing .* 'matrix' and 'launch'"),
        ({"speed": 1}, "argument 'speed'"),
    ):
        with pytest.raises(TypeError, match=words):
            theory.MachineConstants.from_dict(values)


# --- bytes and operators, as torch dispatches them

PRODUCTS = (
    "mm",
    "addmm",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)


def plain_passes(layers, dtype, checkpointing=False):
    size = GPTSize(width=128, layers=layers, vocabulary=512)
    ids = torch.zeros(4, size.context, dtype=torch.int64)
    model = models.GPT(size, checkpointing=checkpointing).to(dtype)
    with Operators() as seen:
        seen.phase = "forward"
        loss = model(ids, ids)
        seen.phase = "backward"
        loss.backward()
    return seen


@pytest.mark.parametrize("dtype, element_bytes", [(torch.bfloat16, 2), (torch.float32, 4)])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_bytes_of_a_models_operators(phase, dtype, element_bytes):
    short, long = plain_passes(2, dtype), plain_passes(3, dtype)
    block = theory.block_elementwise_bytes(4, 64, 128, element_bytes)[phase]
    assert long.total(phase, PRODUCTS) - short.total(phase, PRODUCTS) == pytest.approx(block, rel=0.03)
    ends = theory.ends_elementwise_bytes(GPTSize(width=128, vocabulary=512), 4, 64, element_bytes)[phase]
    assert short.total(phase, PRODUCTS) - 2 * block == pytest.approx(ends, rel=0.1)
    assert (
        long.total(phase, count=True) - short.total(phase, count=True) == step_counts.BLOCK_OPERATORS[phase]
    )


def test_what_checkpointing_computes_again():
    """All of a block but its last product and its last addition."""
    kept, again = (
        [plain_passes(layers, torch.bfloat16, checkpointing) for layers in (2, 3)]
        for checkpointing in (False, True)
    )

    def more(*words, **options):
        (short, long), (short_again, long_again) = (
            [one.total("backward", *words, **options) for one in pair] for pair in (kept, again)
        )
        return (long_again - short_again) - (long - short)

    unit = 2 * 4 * 64 * 128
    assert more(count=True) == step_counts.REPEATED_OPERATORS
    assert more(PRODUCTS) == pytest.approx(
        (step_counts.BLOCK["forward"] - step_counts.ADD["forward"]) * unit, rel=0.03
    )
    assert [pair[1].count["backward", "addmm"] for pair in (kept, again)] == [
        0,
        3 * 3,
    ]  # of three blocks, three products each


def computed_again_under_stage_3():
    """{checkpointing: Operators} of a backward pass through one block."""
    import deepspeed

    size, found = GPTSize(width=128, layers=1, vocabulary=512), {}
    ids = torch.zeros(1, size.context, dtype=torch.int64)
    for checkpointing in (False, True):
        config = configuration(3, reduce_bucket_size=10**8, stage3_param_persistence_threshold=0)
        model = models.build(models.GPT, size, checkpointing=checkpointing, config=config)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        loss = engine(ids, ids)
        with Operators() as found[checkpointing]:
            engine.backward(loss)
    return {
        checkpointing: (seen.count["", "mm"], seen.total("", count=True))
        for checkpointing, seen in found.items()
    }


@pytest.mark.ranks
def test_what_checkpointing_computes_again_at_stage_3():
    """DeepSpeed's linear layer saves its arguments after its product, so that all four products are
    repeated."""
    found = launch(computed_again_under_stage_3, ranks=1, device="cpu")[0]
    more = [again - kept for kept, again in zip(found[False], found[True])]
    assert more == [4, step_counts.ZERO_3_REPEATED_OPERATORS]


def under_deepspeed(stage, accumulation, extra):
    """Elements and tensors; and of the second step {phase: (operators, bytes)}."""
    import deepspeed
    from helpers import corpus

    size = GPTSize(width=128, layers=2, vocabulary=512)
    dropped = {
        f"stage3_{key}": 0
        for key in ("param_persistence_threshold", "max_live_parameters", "max_reuse_distance")
    }
    config = configuration(stage, accumulation=accumulation, extra=extra, reduce_bucket_size=10**8, **dropped)
    model = models.build(models.GPT, size, config=config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    with Operators() as seen:
        for step in range(2 * accumulation):
            if step == accumulation:
                seen.count.clear(), seen.bytes.clear()
            rows = corpus.batch(step, 1, size.context, device=engine.device)
            seen.phase = "forward"
            loss = engine(*rows)
            seen.phase = "backward"
            engine.backward(loss)
            seen.phase = "step"
            engine.step()
    return {
        phase: (seen.total(phase, PRODUCTS, count=True), seen.total(phase, PRODUCTS))
        for phase in ("forward", "backward", "step")
    }


SIZE = GPTSize(width=128, layers=2, vocabulary=512)
WITHOUT_LOOK = {"bf16": {"enabled": True, "check_grad_overflow": False}}
CASES = [
    (0, 1, 2, None),
    (0, 2, 1, None),
    (1, 1, 1, WITHOUT_LOOK),
    (1, 2, 2, None),
    (2, 2, 2, None),
    (3, 2, 1, None),
]


@pytest.mark.ranks
@pytest.mark.parametrize("stage, ranks, accumulation, extra", CASES)
def test_bytes_of_deepspeeds_own_operators(stage, ranks, accumulation, extra):
    seen = launch(
        under_deepspeed,
        ranks,
        arguments={"stage": stage, "accumulation": accumulation, "extra": extra},
        device="cpu",
    )[0]
    parameters, config = theory.gpt_parameters(SIZE), theory.ZeroConfig(stage=stage)
    blocks, ends = (
        theory.block_elementwise_bytes(1, 64, 128, 2, stage == 3),
        theory.ends_elementwise_bytes(SIZE, 1, 64, 2),
    )
    model = {phase: accumulation * (2 * blocks[phase] + ends[phase]) for phase in ("forward", "backward")}
    copies = theory.gradient_copy_bytes(parameters, config, ranks, accumulation)
    for phase in ("forward", "backward"):
        assert seen[phase][1] == pytest.approx(model[phase] + copies[phase], rel=0.12)
    moved = theory.optimizer_bytes(parameters, config, ranks, check_overflow=extra is None)
    assert seen["step"][1] == pytest.approx(moved, rel=0.02)
    issued = theory.operators(SIZE, config, ranks, accumulation, check_overflow=extra is None)
    assert seen["step"][0] == pytest.approx(issued["step"], rel=0.15)


# --- a step's time


def test_a_step_by_hand():
    """Plain torch in fp32, one block of width 8: the parts, each from its own constant."""
    size = GPTSize(vocabulary=16, context=4, width=8, layers=1, heads=1)
    machine = theory.MachineConstants(
        matrix={"fp32": {8: 1.0}}, memory=1e30, launch=0, attention={"fp32": 2.0}
    )
    parts = theory.step_seconds(size, machine, batch=2, dtype="fp32").parts
    assert (
        parts["matrix products"] == 3 * 2 * 8 * 12 * 8**2
    )  # FLOPs at one per second: 8 tokens, 12 h^2 weights
    assert parts["embedding and loss"] == pytest.approx(3 * 2 * 8 * 8 * 16)
    assert parts["attention"] == 3.5 * (2 * 2 * 4**2 * 8) / 2
    again = theory.step_seconds(size, machine, batch=2, dtype="fp32", checkpointing=True).parts
    assert again["matrix products"] == pytest.approx(
        (3 + 8 / 12) / 3 * parts["matrix products"]
    )  # all but the last product, 4 h^2 of 12 h^2
    assert again["embedding and loss"] == parts["embedding and loss"]
    memory = theory.MachineConstants(matrix={"fp32": {8: 1e30}}, memory=1.0, launch=0)
    parts = theory.step_seconds(size, memory, batch=2, dtype="fp32", fused=True).parts
    assert parts["elementwise"] == 63 * 4 * 2 * 4 * 8 and parts["optimizer"] == 28 * theory.gpt_parameters(
        size
    )
    read_and_written = (
        (64 + 3 * 64 + 3 * 64) + 3 * 64 + (64 + 4 * 64 + 4 * 64) + (4 * 64 + 4 * 64 + 64)
    )  # 8 tokens, h = 8: all are 8 x 8 or four
    assert parts["matrix products"] == 3 * 4 * read_and_written


def test_messages_are_those_that_zero_sends():
    """Without latency, and exposed, they take their ideal bytes over the bandwidth."""
    machine = replace(MACHINE, latency=0.0)
    parameters = theory.gpt_parameters(GPT2_XL)
    for stage in range(4):
        config = theory.ZeroConfig(stage=stage, overlap_comm=False)
        found = theory.step_seconds(GPT2_XL, machine, batch=1, config=config, ranks=4, accumulation=2)
        expected = (
            theory.zero_wire_bytes(parameters, 4, stage, accumulation=2, whole_buckets=True)
            / machine.bandwidth
        )
        assert found.parts["messages"] == pytest.approx(expected) and found.hidden == 0


def test_overlap_hides_messages_as_far_as_the_backward_pass_lasts():
    kinds = {"batch": 1, "ranks": 4}
    exposed = theory.step_seconds(GPT2_XL, MACHINE, config=theory.ZeroConfig(stage=2), **kinds)
    hidden = theory.step_seconds(
        GPT2_XL, MACHINE, config=theory.ZeroConfig(stage=2, overlap_comm=True), **kinds
    )
    assert hidden.parts["messages"] + hidden.hidden == pytest.approx(exposed.parts["messages"])
    gathered = theory.wire_bytes("all_gather", 2 * theory.gpt_parameters(GPT2_XL), 4) / MACHINE.bandwidth
    assert (
        hidden.parts["messages"] >= gathered
        and 0 < hidden.hidden < exposed.parts["messages"] - gathered + 1e-9
    )


def test_deepspeeds_configuration_says_what_is_not_said_otherwise():
    config = configuration(
        1, micro_batch=3, accumulation=2, extra={"bf16": {"enabled": True, "check_grad_overflow": False}}
    )
    config["optimizer"]["params"]["fused"] = True
    said = {"batch": 3, "accumulation": 2, "check_overflow": False, "fused": True}
    assert theory.step_seconds(GPT2_XL, MACHINE, config=config) == theory.step_seconds(
        GPT2_XL, MACHINE, config=theory.ZeroConfig.of(config), **said
    )
    for key, other in {"batch": 4, "accumulation": 1, "fused": False}.items():
        assert theory.step_seconds(GPT2_XL, MACHINE, config=config, **{key: other}) != theory.step_seconds(
            GPT2_XL, MACHINE, config=config
        )


def test_a_host_that_is_too_slow_is_recognised():
    quick, slow = replace(MACHINE, launch=1e-9), replace(MACHINE, launch=1e-4)
    kinds = {"batch": 1, "config": theory.ZeroConfig(stage=1)}
    bound = theory.step_seconds(GPT2_XL, slow, **kinds)
    assert bound.launch_bound and bound.total == pytest.approx(bound.host, rel=0.2)
    free = theory.step_seconds(GPT2_XL, quick, **kinds)
    assert not free.launch_bound and free.parts["launches"] == 0 and free.work_share == 1
    in_the_passes = theory.step_seconds(GPT2_XL, replace(quick, call=1e-4), **kinds)
    issued = theory.operators(GPT2_XL, theory.ZeroConfig(stage=1))
    assert in_the_passes.host == pytest.approx(
        1e-4 * (issued["forward"] + issued["backward"]) + 1e-9 * issued["step"]
    )
    together = theory.step_seconds(GPT2_XL, replace(slow, asynchronous=False), **kinds)
    assert together.total == pytest.approx(free.total + together.host)
    assert list(bound.parts) == list(step_time.PARTS)


def test_messages_alone_do_not_make_a_step_launch_bound():
    slow_network = replace(MACHINE, launch=1e-9, call=1e-9, bandwidth=1e8)
    found = theory.step_seconds(GPT2_XL, slow_network, batch=1, ranks=2, config=theory.ZeroConfig(stage=1))
    assert found.work_share < step_time.BUSY and not found.launch_bound


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: theory.flops_per_token(GPT2_XL, 8, "sideways"), "passes must be .forward"),
        (lambda: theory.mfu(GPT2_XL, 8, 1, 0), "peak must be"),
        (lambda: theory.collective_seconds("shout", 1, 2, 0, 1), "collective must be"),
        (lambda: theory.collective_seconds("reduce", 1, 0, 0, 1), "ranks must be"),
        (lambda: theory.collective_seconds("send", 1, 2, 0, 0), "bandwidth must be positive"),
        (lambda: theory.hiding_bandwidth(0, 1, 1), "flops must be"),
        (lambda: theory.pipeline_seconds(0, 1, 1, 1), "stages must be at least 1"),
        (lambda: theory.arithmetic_intensity(1, 0), "moved_bytes must be"),
        (lambda: replace(MACHINE, memory=0), "rates and bandwidths must be positive"),
        (lambda: replace(MACHINE, matrix={}), "at least one rate"),
        (lambda: MACHINE.peak("fp8"), "no matrix rate was measured for 'fp8', only for bf16, fp32"),
        (lambda: theory.step_seconds(GPT2_XL, MACHINE), "say how large a micro-batch is"),
        (lambda: theory.step_seconds(GPT2_XL, MACHINE, batch=0), "batch must be at least 1"),
        (
            lambda: theory.step_seconds(GPT2_XL, replace(MACHINE, bandwidth=None), batch=1, ranks=2),
            "no bandwidth between ranks: measure them with 2",
        ),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_ddp_sends_elements_of_its_dtype():
    sent = {dtype: theory.step_messages(1000, 1, None, 2, dtype=dtype)[0][2] for dtype in ("bf16", "fp32")}
    assert sent == {"bf16": 2000, "fp32": 4000}
    seconds = {
        dtype: theory.step_seconds(GPT2_XL, replace(MACHINE, latency=0.0), batch=1, ranks=2, dtype=dtype)
        for dtype in sent
    }
    seconds = {dtype: step.parts["messages"] + step.hidden for dtype, step in seconds.items()}
    assert seconds["fp32"] == pytest.approx(2 * seconds["bf16"])
