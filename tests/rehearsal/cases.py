"""What is run in real ranks and rehearsed, and what must be equal: functions for `launch` and for `rehearse`,
and the grids of their arguments."""

from __future__ import annotations

import gc
import itertools

from helpers import models
from tests.support import configuration

SMALL = models.GPTSize(context=16, width=32, layers=2, heads=2)
STEPS = 2  # the first of which creates the optimizer's states
PARTITIONED = {"stage3_param_persistence_threshold": 0}  # as the lessons have it: every parameter is divided


def several(cases):
    """Run cases one after another in the same ranks, which begins once for all of them: {name: what `trained`
    returns}."""
    found = {}
    for name, case in cases.items():
        found[name] = trained(**case)
        gc.collect()
    return found


def trained(size, config, checkpointing=False, kernel="sdpa"):
    """Two steps of the course's GPT under a ledger.

    Returns:
        {"moments": [(moment, categories, peak)], "messages": [(operation, bytes, ranks, count)], "storages":
        [(bytes, category, the moment after whose snapshot it was made, that of its end or None)], "order":
        [total bytes after each birth and death]}.
    """
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    ranks, rank = comm.get_world_size(), comm.get_rank()
    sequences = config["train_micro_batch_size_per_gpu"] * ranks
    with Ledger() as ledger, Traffic() as traffic:
        model = models.build(models.GPT, size, kernel, checkpointing, config=config)
        ledger.snapshot("built")
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        ledger.snapshot("initialised")

        def loss(micro):
            return engine(*corpus.batch(micro, sequences, size.context, rank, ranks, engine.device))

        return steps(ledger, traffic, engine, loss, config["gradient_accumulation_steps"])


def steps(ledger, traffic, engine, batch, accumulation=2):
    """STEPS steps, the ledger looking; `batch(number)` gives a micro-batch's loss."""
    for step in range(STEPS):
        for micro in range(accumulation):
            loss = batch(micro)
            ledger.snapshot(f"forward {step}.{micro}")
            engine.backward(loss)
            del loss
            ledger.snapshot(f"backward {step}.{micro}")
            engine.step()
            ledger.snapshot(f"step {step}.{micro}")
    return report(ledger, traffic)


def report(ledger, traffic):
    """What a ledger and a traffic have seen, as plain data."""
    history = ledger.history()
    marks = [at for at, _ in history.marks]

    def moment(clock):
        return None if clock is None else sum(clock > at for at in marks)

    return {
        "moments": [(one.moment, one.categories, one.peak) for one in ledger.snapshots],
        "messages": [(one.operation, one.bytes, one.ranks, one.count) for one in traffic.messages],
        "storages": [
            (one.bytes, one.final_category, moment(one.born), moment(one.died)) for one in ledger.storages
        ],
        "order": history.total,
    }


def keys(stage, bf16=True, accumulation=2, **more):
    """DeepSpeed's configuration of a small case."""
    extra = {"gradient_clipping": more.pop("gradient_clipping", 0.0)}
    zero = (PARTITIONED if stage == 3 else {}) | {"reduce_bucket_size": 6_000} | more
    return configuration(stage, bf16=bf16, accumulation=accumulation, extra=extra, **zero)


def small_grid():
    """Every stage in bf16 and fp32."""
    return {
        f"stage {stage}, {'bf16' if bf16 else 'fp32'}": {"size": SMALL, "config": keys(stage, bf16)}
        for stage, bf16 in itertools.product(range(4), (True, False))
    }


def wide_grid():
    """Other keys, sizes and ways: accumulation, buckets, the keys of stage 3, clipping, checkpointing,
    explicit attention."""
    found = {}
    wider = models.GPTSize(context=32, width=48, layers=3, heads=3)
    for stage, bf16 in itertools.product(range(4), (True, False)):
        name = f"stage {stage}, {'bf16' if bf16 else 'fp32'}"
        found[f"{name}, wider, one micro-batch"] = {
            "size": wider,
            "config": keys(stage, bf16, accumulation=1),
        }
        found[f"{name}, checkpointing"] = {"size": SMALL, "config": keys(stage, bf16), "checkpointing": True}
        found[f"{name}, explicit attention, clipping"] = {
            "size": SMALL,
            "config": keys(stage, bf16, gradient_clipping=1.0),
            "kernel": "explicit",
        }
        found[f"{name}, a large bucket"] = {
            "size": SMALL,
            "config": keys(stage, bf16, reduce_bucket_size=10**7),
        }
    for name, more in THIRD.items():
        found[f"stage 3, {name}"] = {"size": wider, "config": keys(3, **more)}
    for stage in (1, 2):
        found[f"stage {stage}, not contiguous"] = {
            "size": SMALL,
            "config": keys(stage, contiguous_gradients=False),
        }
        found[f"stage {stage}, all-reduced"] = {"size": SMALL, "config": keys(stage, reduce_scatter=False)}
    return found


THIRD = {  # keys of stage 3
    "parameters kept whole": {"stage3_param_persistence_threshold": 10**5},
    "nothing prefetched": {
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    },
    "sub-groups": {"sub_group_size": 5_000},
    "not contiguous": {"contiguous_gradients": False},
    "plain linear": {"memory_efficient_linear": False},
}


def differences(real, rehearsed):
    """Where two reports differ: {"what": (real, rehearsed)}.

    Two things are allowed, since in real ranks gloo's own thread lets go of a message's tensors a moment
    after the call that sent it has returned: `order` is left out, and a real peak may be higher, by no more
    than the largest message.
    """
    found = {}
    for (moment, mine, peak), (_, other, other_peak) in zip(
        real["moments"], rehearsed["moments"], strict=True
    ):
        found |= {
            f"{moment}: {name}": (mine[name], other[name]) for name in mine if mine[name] != other[name]
        }
        if not 0 <= peak - other_peak <= largest_message(real):
            found[f"{moment}: peak"] = (peak, other_peak)
    if real["messages"] != rehearsed["messages"]:
        found["messages"] = (real["messages"], rehearsed["messages"])
    if real["storages"] != rehearsed["storages"]:
        pairs = itertools.zip_longest(real["storages"], rehearsed["storages"])
        place = next(index for index, (one, other) in enumerate(pairs) if one != other)
        found[f"storage {place}"] = (
            real["storages"][place : place + 3],
            rehearsed["storages"][place : place + 3],
        )
    return found


def races(real, rehearsed):
    """Peaks that gloo's thread made higher: [(moment, real, rehearsed)]."""
    both = zip(real["moments"], rehearsed["moments"])
    return [(moment, peak, other) for (moment, _, peak), (_, _, other) in both if peak != other]


def largest_message(report):
    """Bytes of the largest tensor that is part of a message: a part of an all-gather is logged, and the whole
    is held."""
    return max((size * ranks for _, size, ranks, _ in report["messages"]), default=0)


def figures(report):
    """How many figures two equal reports share."""
    return (
        sum(len(categories) + 1 for _, categories, _ in report["moments"])
        + len(report["messages"])
        + len(report["storages"])
    )
