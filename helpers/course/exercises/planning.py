"""Answers of lesson 15: the three functions of a planner: what a rank holds, how long its step takes, and the
cheapest plan that fits."""

import random

from helpers.course.exercises.engine import Build
from helpers.course.exercises.guesses import guess
from helpers.course.models import GPTSize
from helpers.tools import theory

__all__ = ["cheapest_that_fits", "guess", "moments", "step_seconds"]


def _random(seed):
    """The trial's random numbers, other ones on every rank."""
    import deepspeed.comm as comm

    return random.Random(1000 * seed + comm.get_rank())


def _plan(numbers, stage, tensor=1, pipeline=1, checkpointed=None):
    """A plan with random numbers; its step has several micro-batches, unless `numbers` says one."""
    import deepspeed.comm as comm

    replicas, micro, micro_batches = (
        comm.get_world_size() * numbers.choice([8, 16]),
        numbers.choice([1, 2, 3]),
        numbers.choice([2, 4]),
    )
    heads = 16 * numbers.randint(1, 5)
    size = GPTSize(
        vocabulary=64 * numbers.randint(100, 900),
        context=2048,
        width=64 * heads,
        layers=2 * numbers.randint(8, 40) + 1,
        heads=heads,
    )
    return theory.Plan(
        size=size,
        gpus=replicas * tensor * pipeline,
        batch=replicas * micro * micro_batches,
        sequence=1024,
        stage=stage,
        micro=micro,
        checkpointed=numbers.random() < 0.5 if checkpointed is None else checkpointed,
        tensor=tensor,
        pipeline=pipeline,
        bucket=numbers.randint(10, 500) * 1_000_000,
        fused=numbers.random() < 0.5,
    )


def _once(plan):
    """The same plan with one micro-batch in a step."""
    from dataclasses import replace

    return replace(plan, batch=plan.replicas * plan.micro)


def _complete(got, names, what):
    """What a learner's function returned, once it is known to be a dict with all names."""
    if not isinstance(got, dict):
        raise TypeError(
            f"{what}: return a dict with {', '.join(names)}, not "
            f"{'nothing' if got is None else f'a {type(got).__name__}'}"
        )
    if missing := [name for name in names if name not in got]:
        raise KeyError(f"{what}: {', '.join(missing)} is missing")
    return got


def _moments(function, seed):
    numbers, found = _random(seed), {}
    for stage in range(4):
        plan = _plan(
            numbers, stage, tensor=numbers.choice([1, 2]), pipeline=numbers.choice([1, 2]) if stage < 2 else 1
        )
        for words, one in (("with several micro-batches", plan), ("with one micro-batch", _once(plan))):
            got = _complete(function(one), ("loss", "backward", "step"), f"moments of stage {stage}")
            found |= {
                f"GB at the {moment}, stage {stage}, {words}": float(got[moment]) / 1e9
                for moment in ("loss", "backward", "step")
            }
    big = theory.Plan(
        size=GPTSize(vocabulary=50304, context=2048, width=12288, layers=96, heads=96),
        gpus=64,
        batch=64,
        sequence=2048,
        stage=3,
    )
    return found | {
        "GB in the step, stage 3, where each GPU updates more than a sub-group": float(function(big)["step"])
        / 1e9
    }


def _rank_bytes(among="replicas", stepped="part", **left_out):
    """`moments` with the mistake that is named; without one it is right.  Words whose value is False are left
    out."""
    words = ("before", "always", "gathered", "buckets", "copied", "again", "limited", "own")
    before, always, gathered, buckets, copied, again, limited, own = (
        left_out.get(word, True) for word in words
    )

    def moments(plan):
        ranks = plan.replicas if among == "replicas" else plan.gpus
        states = theory.ideal_bytes(
            plan.parameters if own else theory.gpt_parameters(plan.size), ranks, plan.stage
        )
        weights, gradients = states["parameters"], states["gradients"]
        adam = states["master weights"] + states["optimizer states"]
        part = plan.parameters / (ranks if plan.stage else 1)
        bucket = 2 * plan.bucket if plan.stage and buckets else 0
        there = gradients + (bucket if plan.stage in (1, 3) else 0)
        kept = there if before and plan.micro_batches > 1 or always and plan.stage == 3 else 0
        passing = weights + adam + (plan.gathered if gathered else 0)
        at_once = plan.parameters if stepped == "all" else part
        if limited and plan.stage == 3:
            at_once = min(at_once, 1e9)
        return {
            "loss": passing + kept + plan.activations,
            "backward": passing
            + gradients
            + bucket
            + (2 * part if copied and plan.stage in (1, 2) else 0)
            + (plan.again if again else 0),
            "step": weights
            + adam
            + 2 * part
            + (plan.copies if stepped else 0) * at_once
            + (bucket if plan.stage == 3 else 0),
        }

    return moments


moments = Build(
    "moments",
    _moments,
    mistakes={
        "at the loss the gradients of the micro-batch before are missing (with one micro-batch "
        "there are none)": _rank_bytes(before=False),
        "stage 3 keeps its part of the gradients, and its bucket, for ever, "
        "also with one micro-batch": _rank_bytes(always=False),
        "stage 3 has some parameters gathered in both passes: `plan.gathered`": _rank_bytes(gathered=False),
        "ZeRO shards among the replicas, not among all GPUs: `plan.replicas`": _rank_bytes(among="gpus"),
        "the bucket is missing: 2 bytes for each of `plan.bucket` elements, above stage 0": _rank_bytes(
            buckets=False
        ),
        "stages 1 and 2 copy what the partition needs at the end of the backward pass: 2 bytes "
        "for each element of it": _rank_bytes(copied=False),
        "in the backward pass one block is complete: `plan.again`": _rank_bytes(again=False),
        "the step makes copies of what it updates: `plan.copies` bytes for each element": _rank_bytes(
            stepped=""
        ),
        "a rank steps its partition alone above stage 0, and copies no more than that": _rank_bytes(
            stepped="all"
        ),
        "stage 3 steps a sub-group at a time, at most 1e9 elements": _rank_bytes(limited=False),
        "a GPU has the parameters of its tensor shard and pipeline stage alone: "
        "`plan.parameters`": _rank_bytes(own=False),
    },
    praise="three moments compete, and another one wins with another plan",
)


def _cluster(numbers, faster, host=8):
    """Whose GPUs send `faster` times as fast inside a host as through a card."""
    link = numbers.uniform(5e9, 60e9)
    return theory.Cluster(
        gpus=64, memory=80e9, rate=numbers.uniform(1e14, 6e14), link=link, inside=link * faster, host=host
    )


def _step_seconds(function, seed):
    numbers, found = _random(seed), {}
    cases = [
        (0, 1, 1, 4, ""),
        (1, 4, 2, 5, ""),
        (2, 2, 1, 11, ""),
        (3, 1, 1, 10, ""),
        (1, 16, 1, 9, ""),
        (1, 2, 1, 100, "one host"),
        (2, 2, 1, 100, "two hosts"),
    ]
    for stage, tensor, pipeline, faster, hosts in cases:
        plan = _plan(numbers, stage, tensor, pipeline, checkpointed=stage in (1, 3))
        cluster = _cluster(
            numbers, faster, {"one host": plan.gpus, "two hosts": plan.gpus // 2}.get(hosts, 8)
        )
        where = f"of stage {stage}, t = {tensor}, p = {pipeline}" + (
            f", all GPUs in {hosts}" if hosts else ""
        )
        got = _complete(
            function(plan, cluster),
            ("work", "bubble", "tensor parallelism", "pipeline", "ZeRO"),
            f"seconds {where}",
        )
        found |= {f"milliseconds of {part} {where}": 1e3 * float(seconds) for part, seconds in got.items()}
    return found


def _seconds(bubble="all", layers="own", link="hosts", zero="own", **left_out):
    """`step_seconds` with the mistake that is named; without one it is right.  Words whose value is False are
    left out."""
    words = ("both", "checkpoints", "shared", "all_reduces", "micro_batches")
    both, checkpoints, shared, all_reduces, micro_batches = (left_out.get(word, True) for word in words)

    def step_seconds(plan, cluster):
        passes = "checkpointed step" if plan.checkpointed and checkpoints else "step"
        flops = (
            theory.flops_per_token(plan.size, plan.sequence, passes, causal=True) * plan.batch * plan.sequence
        )
        work = flops / (cluster.rate * (plan.gpus if shared else plan.replicas))
        p, m, s = plan.pipeline, plan.micro_batches, plan.imbalance
        unit = 2 * plan.micro * plan.sequence * plan.size.width
        blocks = plan.layers if layers == "own" else plan.size.layers
        times = (m if micro_batches else 1) * blocks * (6 if plan.checkpointed and all_reduces else 4)
        inside = cluster.within if plan.tensor <= cluster.host or link == "inside" else cluster.link
        cards = {"one card": 1, "all cards": cluster.host}.get(link, max(1, cluster.host // plan.tensor))
        limit = float("inf") if link == "unlimited" else cluster.within
        near = {"all inside": True, "never inside": False, "replicas": plan.replicas <= cluster.host}.get(
            link, plan.gpus <= cluster.host
        )
        outside = cluster.within if near else min(limit, cards * cluster.link)
        sent = theory.zero_wire_bytes(
            plan.parameters if zero == "own" else theory.gpt_parameters(plan.size),
            plan.gpus if zero == "gpus" else plan.replicas,
            plan.stage,
            2,
            1 if zero == "once" else m,
            whole_buckets=True,
        )
        return {
            "work": work,
            "bubble": work
            * {
                "all": s - 1 + (p - s) / m,
                "equal": (p - 1) / m,
                "of the step": (p - 1) / (m + p - 1),
                "none": 0,
            }[bubble],
            "tensor parallelism": times * theory.wire_bytes("all_reduce", unit, plan.tensor) / inside,
            "pipeline": (2 if both else 1) * m * unit / plan.tensor / cluster.link if p > 1 else 0.0,
            "ZeRO": sent / outside,
        }

    return step_seconds


step_seconds = Build(
    "step_seconds",
    _step_seconds,
    mistakes={
        "checkpointing computes each block again: 8 FLOPs per parameter and token instead of 6": _seconds(
            checkpoints=False
        ),
        "all GPUs share the work of a step, not the replicas alone": _seconds(shared=False),
        "(p - 1) / (m + p - 1) is the bubble's part of the step; of the work it is (p - 1) / m": _seconds(
            bubble="of the step"
        ),
        "a pipeline has a bubble: (p - 1) / m of the work": _seconds(bubble="none"),
        "where stages are not equal all wait for the longest: `plan.imbalance`": _seconds(bubble="equal"),
        "a checkpointed block's all-reduces of the forward pass come twice: 6 instead of 4": _seconds(
            all_reduces=False
        ),
        "a GPU has the layers of its pipeline stage alone: `plan.layers`": _seconds(layers="all"),
        "tensor parallelism sends in each micro-batch": _seconds(micro_batches=False),
        "between pipeline stages activations go forward, and as many bytes of gradients back": _seconds(
            both=False
        ),
        "a tensor-parallel group that is larger than a host goes over `cluster.link`": _seconds(
            link="inside"
        ),
        "ZeRO's messages go through all hosts: over the cards, `cluster.link` each": _seconds(
            link="all inside"
        ),
        "where all GPUs are in one host ZeRO's messages stay inside: `cluster.within`": _seconds(
            link="never inside"
        ),
        "replicas that are no more than a host's GPUs may still lie in several hosts: ask "
        "whether all GPUs fit into one": _seconds(link="replicas"),
        "a group of replicas has `cluster.host // plan.tensor` GPUs in each host, and sends over "
        "all of their cards": _seconds(link="one card"),
        "however many cards there are, inside a host nothing is faster than `cluster.within`": _seconds(
            link="unlimited"
        ),
        "of a host's cards only those of the group's GPUs count: `cluster.host // plan.tensor`": _seconds(
            link="all cards"
        ),
        "ZeRO shards the parameters of one GPU, `plan.parameters`, not the whole model's": _seconds(
            zero="whole"
        ),
        "ZeRO's messages go among the replicas, not among all GPUs": _seconds(zero="gpus"),
        "stages 2 and 3 send in each micro-batch: `accumulation=plan.micro_batches`": _seconds(zero="once"),
    },
    praise="work, the bubble, and three kinds of messages",
)


def _cheapest(function, seed):
    """Invented plans: numbers alone.  The fastest of all does not fit, the smallest is slow, and a simpler
    plan is almost as fast as the best."""
    numbers, found = _random(seed), {}
    for trial in range(4):
        best = numbers.uniform(5, 8)
        plans = {
            f"plan {index}": (numbers.randint(30, 60), best * numbers.uniform(1.2, 2)) for index in range(6)
        }
        plans |= {
            "the fastest": (100, 1.0),
            "the smallest": (20, 3 * best),
            "the best": (80, best),
            "the slowest": (50, 5 * best),
        }
        names = list(plans)
        numbers.shuffle(names)
        names.insert(numbers.randrange(names.index("the best") + 1), "almost as fast")
        names.append("almost as fast too")
        plans |= {"almost as fast": (80, 1.04 * best), "almost as fast too": (80, 1.01 * best)}
        needed, seconds = (
            {name: plan[0] for name, plan in plans.items()},
            {name: plan[1] for name, plan in plans.items()},
        )
        found[f"choice {trial}"] = str(function(list(names), needed.__getitem__, seconds.__getitem__, 80))
        chain, times = ["first", "second", "third"], {"first": 1.06, "second": 1.02, "third": 1.0}
        found[f"choice {trial}, where each is a little faster than the one before"] = str(
            function(list(chain), lambda plan: 1, times.get, 80)
        )
        found[f"choice {trial}, where memory is small"] = str(
            function(list(names), needed.__getitem__, seconds.__getitem__, 10)
        )
    return found


def _choice(fits=True, by="seconds", limit="<=", margin=0.05, last=False):
    """`cheapest_that_fits` with the mistake that is named; without one it is right."""

    def cheapest_that_fits(plans, needed, seconds, memory):
        plans = list(plans)
        fitting = [
            plan
            for plan in plans
            if not fits or (needed(plan) < memory if limit == "<" else needed(plan) <= memory)
        ]
        if not fitting:
            return None
        if by == "greedy":
            best = fitting[0]
            for plan in fitting:
                best = plan if seconds(plan) < 0.95 * seconds(best) else best
            return best
        if by != "seconds":
            return {
                "bytes": min(fitting, key=needed),
                "slowest": max(fitting, key=seconds),
                "first": fitting[0],
            }[by]
        close = [plan for plan in fitting if seconds(plan) <= (1 + margin) * min(map(seconds, fitting))]
        return close[-1 if last else 0]

    return cheapest_that_fits


cheapest_that_fits = Build(
    "cheapest_that_fits",
    _cheapest,
    mistakes={
        "this is the fastest of all plans, or one near it: it must fit too": _choice(fits=False),
        "this is the plan that needs the fewest bytes: of those that fit, look at the seconds": _choice(
            by="bytes"
        ),
        "this is the slowest plan that fits": _choice(by="slowest"),
        "this is the first plan that fits: others may be faster": _choice(by="first"),
        "compare each plan with the fastest of all that fit, not with the best so far": _choice(by="greedy"),
        "a plan that needs exactly the memory fits": _choice(limit="<"),
        "this is the fastest that fits; an earlier, simpler one takes at most 5 % more": _choice(margin=0.0),
        "of those that take at most 5 % more, take the first": _choice(last=True),
    },
    praise="a loop over all plans is enough: there are hundreds, and each takes microseconds",
)
