"""DeepSpeed's exact bytes per rank, predicted and measured by the ledger in real jobs, to the byte and by category."""

import itertools

import pytest
from helpers import models, theory
from helpers.launchers import launch
from helpers.models import GPTSize

SIZES = (
    GPTSize(),
    GPTSize(vocabulary=257, context=24, width=36, layers=3, heads=3),
    GPTSize(vocabulary=331, context=32, width=128, layers=2, heads=4),
)
BUCKETS = (1_000, 200_000)
CASES = list(itertools.product((0, 1, 2, 3), ("bf16", "fp32"), BUCKETS))


def measure(size, cases):
    """Snapshots at the three moments of the second step, for every case."""
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus
    from helpers.ledger import Ledger

    deepspeed.init_distributed()
    found = []
    for stage, dtype, bucket in cases:
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 2,
            "bf16": {"enabled": dtype == "bf16"},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": bucket, "overlap_comm": False, "stage3_param_persistence_threshold": 100},
        }
        with Ledger() as ledger:
            model = models.build(models.GPT, size)
            engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
            ledger.watch(engine)
            for micro in range(4):
                batch = corpus.batch(micro, comm.get_world_size(), 8, comm.get_rank(), comm.get_world_size(), engine.device)
                engine.backward(engine(*batch))
                del batch
                if micro >= 2:
                    ledger.snapshot(("between micro-batches", "after backward")[micro - 2])
                engine.step()
            ledger.snapshot("after step")
        found.append({snapshot.moment: snapshot for snapshot in ledger.snapshots})
        engine.destroy()
        del engine, model
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"width{size.width}")
def test_predicted_to_the_byte(size, ranks):
    numels = [parameter.numel() for parameter in models.GPT(size).parameters()]
    different = []
    for rank, found in enumerate(launch(measure, ranks=ranks, arguments={"size": size, "cases": CASES}, device="cpu")):
        for (stage, dtype, bucket), snapshots in zip(CASES, found):
            for moment in theory.MOMENTS:
                snapshot = snapshots[moment]
                predicted = theory.deepspeed_bytes(
                    numels, ranks, rank, stage, dtype, moment, reduce_bucket_size=bucket, overlap_comm=False, persistence_threshold=100
                )
                measured = {category: snapshot[category] for category in predicted}
                assert snapshot.settled, f"unsettled: {snapshot}"
                if measured != predicted or snapshot.total != sum(predicted.values()):
                    different.append(
                        f"stage {stage} {dtype} bucket {bucket} rank {rank} {moment}: {snapshot.categories} where {predicted} was predicted"
                    )
    assert not different, "\n".join(different)
