"""Schedules, bubbles and stages: DeepSpeed's own schedule executed, and real pipelines measured."""

from types import SimpleNamespace

import pytest
from helpers import launch, models, theory
from helpers.tools.theory import schedules
from tests.support import configuration

GRID = [
    (stages, micro_batches) for stages in (1, 2, 3, 4, 5, 8, 16) for micro_batches in (1, 2, 3, 4, 8, 16, 33)
]


@pytest.mark.parametrize("stages, micro_batches", GRID)
def test_the_bubble_of_deepspeeds_schedule(stages, micro_batches):
    orders = schedules.deepspeed_orders(stages, micro_batches)
    for forward, backward in ((1, 1), (1, 2)):
        timelines = schedules.replay(orders, {"F": forward, "B": backward})
        assert schedules.idle_fraction(timelines) == pytest.approx(
            theory.bubble_fraction(stages, micro_batches)
        )
    assert max(timelines[0][-1][4], timelines[-1][-1][4]) == (micro_batches + stages - 1) * 3


@pytest.mark.parametrize("stages, micro_batches", GRID)
def test_micro_batches_in_flight_of_deepspeeds_schedule(stages, micro_batches):
    for stage, order in enumerate(schedules.deepspeed_orders(stages, micro_batches)):
        assert len(order) == 2 * micro_batches and len(set(order)) == len(order)
        assert schedules.most_in_flight(order) == theory.micro_batches_in_flight(stages, stage, micro_batches)


def test_published_bubbles():
    """Two denominators for the same bubble: of the whole time (arXiv 1811.06965), of the useful time (arXiv
    2104.04473, section 2.2)."""
    assert theory.bubble_fraction(4, 8) == pytest.approx(3 / 11)
    for stages, micro_batches, chunks in ((4, 8, 1), (8, 64, 2)):
        fraction = theory.bubble_fraction(stages, micro_batches, chunks)
        assert fraction / (1 - fraction) == pytest.approx((stages - 1) / (chunks * micro_batches))


def test_gpipe_holds_every_micro_batch():
    assert [theory.micro_batches_in_flight(4, stage, 8, "gpipe") for stage in range(4)] == [8] * 4


def test_zero_bubble_with_equal_thirds():
    assert theory.zero_bubble_fraction(4, 8) == pytest.approx(3 / 27)
    assert theory.zero_bubble_fraction(4, 8) < theory.bubble_fraction(4, 8)


def split_orders(stages, micro_batches, delay):
    """One rank per stage, each micro-batch's "W" `delay` micro-batches after its "I": warm-up, then F, I and
    W in turns (ZB-H1's order)."""
    orders = []
    for stage in range(stages):
        warm = min(stages - stage, micro_batches)
        order = [("F", stage, micro) for micro in range(warm)]
        for micro in range(micro_batches):
            order.append(("I", stage, micro))
            if micro >= delay(stage):
                order.append(("W", stage, micro - delay(stage)))
            if warm + micro < micro_batches:
                order.append(("F", stage, warm + micro))
        done = {micro for kind, _, micro in order if kind == "W"}
        orders.append(order + [("W", stage, micro) for micro in range(micro_batches) if micro not in done])
    return orders


def test_a_backward_pass_in_two_parts_is_replayed_in_order():
    """The input's gradient goes to the stage before at once; the weights' waits for nothing but its own."""
    first, last = schedules.replay(split_orders(2, 1, lambda stage: 0), {"F": 1, "I": 2, "W": 3})
    assert last == [("F", 1, 0, 1, 2), ("I", 1, 0, 2, 4), ("W", 1, 0, 4, 7)]
    assert first == [("F", 0, 0, 0.0, 1.0), ("I", 0, 0, 4, 6), ("W", 0, 0, 6, 9)]


def test_stages_that_differ_are_replayed_with_their_own_times():
    """The longest stage never stops once it has begun, and the others wait for it: by hand, for two stages
    and two micro-batches."""
    slow = schedules.replay(schedules.deepspeed_orders(2, 2), {"F": 1, "B": 1, ("F", 1): 2, ("B", 1): 3})
    assert slow[1] == [("F", 1, 0, 1, 3), ("B", 1, 0, 3, 6), ("F", 1, 1, 6, 8), ("B", 1, 1, 8, 11)]
    assert slow[0] == [("F", 0, 0, 0.0, 1.0), ("F", 0, 1, 1, 2), ("B", 0, 0, 6, 7), ("B", 0, 1, 11, 12)]
    alike = {(kind, stage): seconds for kind, seconds in (("F", 1), ("B", 2)) for stage in range(4)}
    orders = schedules.deepspeed_orders(4, 8)
    assert schedules.replay(orders, alike) == schedules.replay(orders, {"F": 1, "B": 2})


@pytest.mark.parametrize("stages, micro_batches", [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_splitting_the_backward_pass_leaves_the_bubble_of_the_formula(stages, micro_batches):
    """ZB-H1, with equal thirds: a rank with less warm-up has weights' gradients left, which fill its idle
    time."""
    timelines = schedules.replay(
        split_orders(stages, micro_batches, lambda stage: stage), {"F": 1, "I": 1, "W": 1}
    )
    assert schedules.idle_fraction(timelines) == pytest.approx(
        theory.zero_bubble_fraction(stages, micro_batches)
    )


def test_a_micro_batch_is_held_until_its_weights_gradients_are_there():
    at_once, late = split_orders(1, 4, lambda stage: 0)[0], split_orders(1, 4, lambda stage: 2)[0]
    assert schedules.most_in_flight(at_once) == 1
    assert schedules.most_in_flight(late) == 3
    assert (
        schedules.most_in_flight(
            [("F", 0, 0), ("I", 0, 0), ("F", 0, 1), ("I", 0, 1), ("W", 0, 0), ("W", 0, 1)]
        )
        == 2
    )


def test_what_is_held_over_time_has_its_peak_where_the_order_says():
    for orders in (schedules.deepspeed_orders(4, 8), split_orders(4, 8, lambda stage: stage)):
        timelines = schedules.replay(orders, {"F": 1, "B": 2, "I": 1, "W": 1})
        held = [schedules.held_over_time(timeline) for timeline in timelines]
        assert [max(count for _, count in row) for row in held] == [
            schedules.most_in_flight(order) for order in orders
        ]
        assert [row[-1][1] for row in held] == [0] * 4
    two = [
        ("F", 0, 0, 0, 1),
        ("F", 2, 0, 1, 2),
        ("B", 2, 0, 3, 4),
        ("B", 0, 0, 5, 6),
    ]  # of a rank with two stages
    assert schedules.held_over_time(two) == [(0, 0.5), (1, 1), (4, 0.5), (6, 0)]


def test_what_clocks_noted_is_a_timeline_in_order():
    first = SimpleNamespace(
        boxes=[
            ("forward", "2", 5.2, 5.3),
            ("send", "1", 5.1, 5.2),
            ("forward", "1", 5.0, 5.1),
            ("optimizer", "1", 9.0, 9.5),
        ]
    )
    second = SimpleNamespace(boxes=[("forward", "1", 5.25, 5.5), ("backward", "1", 5.5, 6.0)])
    rows = schedules.by_the_clock([first, second])
    assert [[action[:3] for action in row] for row in rows] == [
        [("F", 0, 0), ("F", 0, 1)],
        [("F", 1, 0), ("B", 1, 0)],
    ]
    assert [action[3:] for action in rows[1]] == [pytest.approx((250, 500)), pytest.approx((500, 1000))]


def test_orders_that_wait_for_each_other_are_named():
    with pytest.raises(ValueError, match=r"rank 0 before \('B', 0, 0\), rank 1 before \('B', 1, 1\)"):
        schedules.replay([[("F", 0, 0), ("B", 0, 0)], [("B", 1, 1), ("F", 1, 0)]], {"F": 1, "B": 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.bubble_fraction(0, 1),
        lambda: theory.zero_bubble_fraction(2, 0),
        lambda: theory.micro_batches_in_flight(2, 2, 4),
        lambda: theory.micro_batches_in_flight(2, 0, 4, "rush hour"),
    ],
)
def test_bad_input_is_named(call):
    with pytest.raises(ValueError, match="must be"):
        call()


BATCH, LENGTH, MICRO_BATCHES = 2, 16, 5


def run(size, zero, dtype, replicas):
    """The instructions that this rank executed, what it held after each forward pass, its traffic and its
    parameters."""
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule
    from helpers import corpus
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    layers = [
        LayerSpec(models.Embedding, size),
        *(LayerSpec(models.Block, size) for _ in range(size.layers)),
        LayerSpec(models.Head, size),
    ]
    config = configuration(zero, bf16=dtype == "bf16", micro_batch=BATCH, accumulation=MICRO_BATCHES)
    events = []
    with Ledger() as ledger:
        stages = comm.get_world_size() // replicas
        seeds = {"seed_layers": True, "base_seed": 0, "seed_fn": lambda seed: torch.manual_seed(int(seed))}
        model = PipelineModule(layers, num_stages=stages, loss_fn=models.NextTokenLoss(), **seeds)
        engine, *_ = deepspeed.initialize(model=model, config=config)
        ledger.watch(engine)

        def recorded(name, instruction):
            def execute(engine, *arguments, **options):
                instruction(engine, *arguments, **options)
                events.append((name, ledger.categories()))

            return execute

        engine._INSTRUCTION_MAP = {
            kind: recorded(kind.__name__, instruction)
            for kind, instruction in engine._INSTRUCTION_MAP.items()
        }
        for step in range(2):
            events.clear()
            rows = corpus.batch(
                step,
                BATCH * MICRO_BATCHES * replicas,
                LENGTH,
                engine.grid.get_data_parallel_id(),
                replicas,
                engine.device,
            )
            with Traffic() as traffic:
                engine.train_batch(
                    data_iter=(
                        (ids, targets.clone()) for ids, targets in zip(*(part.split(BATCH) for part in rows))
                    )
                )
    first, last = engine.is_first_stage(), engine.is_last_stage()
    blocks = sum(isinstance(layer, models.Block) for layer in model.forward_funcs)
    return events, traffic, sum(p.numel() for p in model.parameters()), (blocks, first, last), engine.stage_id


@pytest.mark.ranks
@pytest.mark.parametrize(
    "ranks, replicas, zero, dtype",
    [(2, 1, 0, "fp32"), (3, 1, 1, "bf16"), (4, 1, 0, "fp32"), (4, 2, 1, "bf16")],
)
def test_a_real_pipeline_to_the_byte(ranks, replicas, zero, dtype):
    size, element = models.TINY, {"bf16": 2, "fp32": 4}[dtype]
    reports = launch(
        run,
        ranks=ranks,
        arguments={"size": size, "zero": zero, "dtype": dtype, "replicas": replicas},
        device="cpu",
    )
    stages = ranks // replicas
    generated, executed = schedules.deepspeed_orders(stages, MICRO_BATCHES), {}
    for events, traffic, parameters, (blocks, first, last), stage in reports:
        executed[stage] = schedules.actions((name for name, _ in events), stage)
        assert executed[stage] == generated[stage]
        assert parameters == theory.pipeline_stage_parameters(size, blocks, first, last)
        *_, held = (
            categories["activations"] + categories["inputs"]
            for name, categories in events
            if name == "ForwardPass"
        )
        assert held == theory.pipeline_held_bytes(
            size, BATCH, LENGTH, element, blocks, stages, stage, MICRO_BATCHES
        )
        activation = element * BATCH * LENGTH * size.width
        assert traffic.logged["send"] == theory.pipeline_wire_bytes(activation, MICRO_BATCHES, first, last)
    timelines = schedules.replay([executed[stage] for stage in range(stages)], {"F": 1, "B": 1})
    assert schedules.idle_fraction(timelines) == pytest.approx(theory.bubble_fraction(stages, MICRO_BATCHES))
