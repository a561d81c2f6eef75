"""Schedules, bubbles and stages: DeepSpeed's own schedule executed, and real pipelines measured."""

import pytest
from helpers import launch, models, theory
from helpers.theory import schedules

GRID = [(stages, micro_batches) for stages in (1, 2, 3, 4, 5, 8, 16) for micro_batches in (1, 2, 3, 4, 8, 16, 33)]


@pytest.mark.parametrize("stages, micro_batches", GRID)
def test_the_bubble_of_deepspeeds_schedule(stages, micro_batches):
    orders = schedules.deepspeed_orders(stages, micro_batches)
    for forward, backward in ((1, 1), (1, 2)):
        timelines = schedules.replay(orders, {"F": forward, "B": backward})
        assert schedules.idle_fraction(timelines) == pytest.approx(theory.bubble_fraction(stages, micro_batches))
    assert max(timelines[0][-1][4], timelines[-1][-1][4]) == (micro_batches + stages - 1) * 3


@pytest.mark.parametrize("stages, micro_batches", GRID)
def test_micro_batches_in_flight_of_deepspeeds_schedule(stages, micro_batches):
    for stage, order in enumerate(schedules.deepspeed_orders(stages, micro_batches)):
        assert len(order) == 2 * micro_batches and len(set(order)) == len(order)
        assert schedules.most_in_flight(order) == theory.micro_batches_in_flight(stages, stage, micro_batches)


def test_published_bubbles():
    """Two denominators for the same bubble: of the whole time (arXiv 1811.06965), of the useful time (arXiv 2104.04473, section 2.2)."""
    assert theory.bubble_fraction(4, 8) == pytest.approx(3 / 11)
    for stages, micro_batches, chunks in ((4, 8, 1), (8, 64, 2)):
        fraction = theory.bubble_fraction(stages, micro_batches, chunks)
        assert fraction / (1 - fraction) == pytest.approx((stages - 1) / (chunks * micro_batches))


def test_gpipe_holds_every_micro_batch():
    assert [theory.micro_batches_in_flight(4, stage, 8, "gpipe") for stage in range(4)] == [8] * 4


def test_zero_bubble_with_equal_thirds():
    assert theory.zero_bubble_fraction(4, 8) == pytest.approx(3 / 27)
    assert theory.zero_bubble_fraction(4, 8) < theory.bubble_fraction(4, 8)


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
    """The instructions that this rank executed, what it held after each forward pass, its traffic and its parameters."""
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule
    from helpers import corpus
    from helpers.measure.ledger import Ledger
    from helpers.measure.traffic import Traffic

    deepspeed.init_distributed()
    layers = [LayerSpec(models.Embedding, size), *(LayerSpec(models.Block, size) for _ in range(size.layers)), LayerSpec(models.Head, size)]
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "bf16": {"enabled": dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": zero, "reduce_bucket_size": 20_000},
    }
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

        engine._INSTRUCTION_MAP = {kind: recorded(kind.__name__, instruction) for kind, instruction in engine._INSTRUCTION_MAP.items()}
        for step in range(2):
            events.clear()
            rows = corpus.batch(step, BATCH * MICRO_BATCHES * replicas, LENGTH, engine.grid.get_data_parallel_id(), replicas, engine.device)
            with Traffic() as traffic:
                engine.train_batch(data_iter=((ids, targets.clone()) for ids, targets in zip(*(part.split(BATCH) for part in rows))))
    first, last = engine.is_first_stage(), engine.is_last_stage()
    blocks = sum(isinstance(layer, models.Block) for layer in model.forward_funcs)
    return events, traffic, sum(p.numel() for p in model.parameters()), (blocks, first, last), engine.stage_id


@pytest.mark.parametrize("ranks, replicas, zero, dtype", [(2, 1, 0, "fp32"), (3, 1, 1, "bf16"), (4, 1, 0, "fp32"), (4, 2, 1, "bf16")])
def test_a_real_pipeline_to_the_byte(ranks, replicas, zero, dtype):
    size, element = models.TINY, {"bf16": 2, "fp32": 4}[dtype]
    reports = launch(run, ranks=ranks, arguments={"size": size, "zero": zero, "dtype": dtype, "replicas": replicas}, device="cpu")
    stages = ranks // replicas
    generated, executed = schedules.deepspeed_orders(stages, MICRO_BATCHES), {}
    for events, traffic, parameters, (blocks, first, last), stage in reports:
        executed[stage] = schedules.actions((name for name, _ in events), stage)
        assert executed[stage] == generated[stage]
        assert parameters == theory.pipeline_stage_parameters(size, blocks, first, last)
        *_, held = (categories["activations"] + categories["inputs"] for name, categories in events if name == "ForwardPass")
        assert held == theory.pipeline_held_bytes(size, BATCH, LENGTH, element, blocks, stages, stage, MICRO_BATCHES)
        assert traffic.logged["send"] == theory.pipeline_wire_bytes(BATCH, LENGTH, size.width, element, MICRO_BATCHES, first, last)
    timelines = schedules.replay([executed[stage] for stage in range(stages)], {"F": 1, "B": 1})
    assert schedules.idle_fraction(timelines) == pytest.approx(theory.bubble_fraction(stages, MICRO_BATCHES))
