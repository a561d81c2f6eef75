"""Answers of lesson 17, a planner: what a rank holds, how long a step takes, the cheapest plan that fits."""

from dataclasses import replace

from torch import distributed as dist
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions import planning as solutions
from helpers.course.exercises.trials import build, complete, random_of_rank
from helpers.course.models import GPTSize
from helpers.tools import theory


def _plan(numbers, tensor=1, pipeline=1, **choices):
    """A plan with random numbers; its step has several micro-batches."""
    replicas, heads = dist.get_world_size() * numbers.choice([8, 16]), 16 * numbers.randint(1, 5)
    micro, micro_batches = numbers.choice([1, 2, 3]), numbers.choice([2, 4])
    vocabulary, layers = 64 * numbers.randint(100, 900), 2 * numbers.randint(8, 40) + 1
    size = GPTSize(vocabulary=vocabulary, context=2048, width=64 * heads, layers=layers, heads=heads)
    ways = {name: numbers.random() < 0.5 for name in ("checkpointed", "lean")} | choices
    ways |= {"tensor": tensor, "pipeline": pipeline, "bucket": numbers.randint(10, 500) * 1_000_000}
    ways |= {"gpus": replicas * tensor * pipeline, "batch": replicas * micro * micro_batches, "micro": micro}
    return theory.Plan(size=size, sequence=1024, **ways)


def _moments(function, seed):
    numbers, seen, names = random_of_rank(seed), {}, ("loss", "backward", "step")
    for stage in range(4):
        tensor, pipeline = numbers.choice([1, 2]), numbers.choice([1, 2]) if stage < 2 else 1
        plan = _plan(numbers, tensor, pipeline, stage=stage)
        once = replace(plan, batch=plan.replicas * plan.micro)
        for words, case in (("with several micro-batches", plan), ("with one micro-batch", once)):
            held = complete(function(case), names, f"moments of stage {stage}: ")
            seen |= {f"GB at the {name}, stage {stage}, {words}": float(held[name]) / 1e9 for name in names}
    size = GPTSize(vocabulary=50304, context=2048, width=12288, layers=96, heads=96)
    step = function(theory.Plan(size=size, gpus=64, batch=64, sequence=2048, stage=3))["step"]
    seen["GB in the step, stage 3, where each GPU updates more than a sub-group"] = float(step) / 1e9
    return seen


MOMENTS_MISTAKES = """
at the loss the gradients of the micro-batch before are missing (with one micro-batch there are none)
    plan.micro_batches > 1 or plan.stage == 3 -> plan.stage == 3
stage 3 keeps its part of the gradients, and its bucket, for ever, also with one micro-batch
    1 or plan.stage == 3: -> 1:
stage 3 has some parameters gathered in both passes: `plan.gathered`
    always + plan.gathered + plan.activations -> always + plan.activations
    always + plan.gathered + gradients -> always + gradients
ZeRO shards among the replicas, not among all GPUs: `plan.replicas`
    parameters, plan.replicas -> parameters, plan.gpus
    parameters / plan.replicas -> parameters / plan.gpus
the bucket is missing: 2 bytes for each of `plan.bucket` elements, above stage 0
    2 * plan.bucket if plan.stage else 0 -> 0
stages 1 and 2 copy what the partition needs at the end of the backward pass: 2 bytes for each element of it
    2 * part if plan.stage in (1, 2) else 0 -> 0
in the backward pass one block is complete: `plan.again`
    copied + plan.again -> copied
the step makes copies of what it updates: `plan.copies` bytes for each element
    plan.copies * stepped + (bucket -> (bucket
a rank steps its partition alone above stage 0, and copies no more than that
    min(part, 1e9) -> min(plan.parameters, 1e9)
    else part  # one -> else plan.parameters  # one
stage 3 steps a sub-group at a time, at most 1e9 elements
    min(part, 1e9) if plan.stage == 3 else part -> part
a GPU has the parameters of its tensor shard and pipeline stage alone: `plan.parameters`
    ideal_bytes(plan.parameters -> ideal_bytes(theory.gpt_parameters(plan.size)
"""
moments = build(
    solutions.moments_solution,
    _moments,
    MOMENTS_MISTAKES,
    praise="three moments compete for the peak, and the plan decides which one wins",
)


def _step_seconds(function, seed):
    numbers, seen = random_of_rank(seed), {}
    parts = ("work", "bubble", "tensor parallelism", "pipeline", "ZeRO")
    for stage, tensor, pipeline, faster, hosts, ways in (  # faster: a host's own links than a card
        (0, 1, 1, 4, "", {}),
        (1, 4, 2, 5, "", {}),
        (2, 2, 1, 11, "", {"sequence_parallel": False}),
        (3, 1, 1, 10, "", {}),
        (1, 16, 1, 9, "", {}),
        (1, 2, 1, 100, "one host", {}),
        (2, 2, 1, 100, "two hosts", {}),
        (1, 2, 2, 100, "a host for each stage", {}),
    ):
        plan = _plan(numbers, tensor, pipeline, stage=stage, checkpointed=stage in (1, 3), **ways)
        link, rate = numbers.uniform(5e9, 60e9), numbers.uniform(1e14, 6e14)
        host = plan.gpus // {"": plan.gpus // 8, "one host": 1}.get(hosts, 2)
        cluster = theory.Cluster(gpus=64, memory=80e9, rate=rate, link=link, inside=link * faster, host=host)
        where = f"of stage {stage}, t = {tensor}, p = {pipeline}" + (hosts and f", all GPUs in {hosts}")
        took = complete(function(plan, cluster), parts, f"seconds {where}: ")
        seen |= {f"milliseconds of {part} {where}": 1e3 * float(took[part]) for part in parts}
    return seen


STEP_SECONDS_MISTAKES = """
checkpointing computes each block again: 8 FLOPs per parameter and token instead of 6
    "checkpointed step" if plan.checkpointed else "step" -> "step"
all GPUs share the work of a step, not the replicas alone
    plan.gpus * cluster.rate -> plan.replicas * cluster.rate
(p - 1) / (m + p - 1) is the bubble's part of the step; of the work it is (p - 1) / m
    (s - 1 + (plan.pipeline - s) / m) -> (plan.pipeline - 1) / (m + plan.pipeline - 1)
a pipeline has a bubble: (p - 1) / m of the work
    (s - 1 + (plan.pipeline - s) / m) -> 0
where stages are not equal all wait for the longest: `plan.imbalance`
    (s - 1 + (plan.pipeline - s) / m) -> (plan.pipeline - 1) / m
a checkpointed block's all-reduces of the forward pass come twice: 6 instead of 4
    6 if plan.checkpointed else 4 -> 4
with sequence parallelism the backward pass gathers the inputs of sharded products once more: as many bytes
as one all-reduce more
    reduces += plan.sequence_parallel -> pass
a GPU has the layers of its pipeline stage alone: `plan.layers`
    plan.layers -> plan.size.layers
tensor parallelism sends in each micro-batch
    m * plan.layers -> plan.layers
between pipeline stages activations go forward, and as many bytes of gradients back
    2 * m * unit -> m * unit
a tensor-parallel group that is larger than a host goes over `cluster.link`, through the cards of all GPUs of
a host
    (cluster.within if t <= cluster.host else all_cards) -> cluster.within
a group that is larger than a host has all of its cards, not one: `cluster.host * cluster.link`
    cluster.host * cluster.link -> cluster.link
ZeRO's messages go through all hosts: over the cards, `cluster.link` each
    (cluster.within if in_a_host else cards) -> cluster.within
where all GPUs are in one host ZeRO's messages stay inside: `cluster.within`
    (cluster.within if in_a_host else cards) -> cards
replicas that are no more than a host's GPUs may still lie in several hosts: ask whether all GPUs fit into
one
    plan.gpus // plan.pipeline <= cluster.host -> plan.replicas <= cluster.host
replicas are of one stage: they stay inside where its GPUs, `plan.gpus // plan.pipeline`, fit into a host
    plan.gpus // plan.pipeline <= cluster.host -> plan.gpus <= cluster.host
a group of replicas has `cluster.host // plan.tensor` GPUs in each host, and sends over all of their cards
    max(1, cluster.host // t) * cluster.link -> cluster.link
however many cards there are, inside a host nothing is faster than `cluster.within`
    min(cluster.within, max(1, cluster.host // t) * cluster.link) -> max(1, cluster.host // t) * cluster.link
of a host's cards only those of the group's GPUs count: `cluster.host // plan.tensor`
    max(1, cluster.host // t) -> cluster.host
ZeRO shards the parameters of one GPU, `plan.parameters`, not the whole model's
    wire_bytes(plan.parameters -> wire_bytes(theory.gpt_parameters(plan.size)
ZeRO's messages go among the replicas, not among all GPUs
    plan.replicas -> plan.gpus
stages 2 and 3 send in each micro-batch: `accumulation=plan.micro_batches`
    2, m, -> 2, 1,
"""
step_seconds = build(
    solutions.step_seconds_solution,
    _step_seconds,
    STEP_SECONDS_MISTAKES,
    praise="a step is work, the bubble, and three kinds of messages",
)


def _cheapest(function, seed):
    """Invented plans: numbers alone.  The fastest of all does not fit, the smallest is slow, and a simpler
    plan is almost as fast as the best."""
    numbers, seen = random_of_rank(seed), {}
    for trial in range(4):
        best = numbers.uniform(5, 8)
        plans = {f"plan {at}": (numbers.randint(30, 60), best * numbers.uniform(1.2, 2)) for at in range(6)}
        plans |= {"the fastest": (100, 1.0), "the smallest": (20, 3 * best)}
        plans |= {"the best": (80, best), "the slowest": (50, 5 * best)}
        names = list(plans)
        numbers.shuffle(names)
        names.insert(numbers.randrange(names.index("the best") + 1), "almost as fast")
        names.append("almost as fast too")
        plans |= {"almost as fast": (80, 1.04 * best), "almost as fast too": (80, 1.01 * best)}
        needed, seconds = ({name: plan[part] for name, plan in plans.items()}.__getitem__ for part in (0, 1))
        chain = {"first": 1.06, "second": 1.02, "third": 1.0}
        small = function(list(chain), lambda plan: 1, chain.get, 80)
        seen[f"choice {trial}"] = str(function(list(names), needed, seconds, 80))
        seen[f"choice {trial}, where each is a little faster than the one before"] = str(small)
        seen[f"choice {trial}, where memory is small"] = str(function(list(names), needed, seconds, 10))
    return seen


def _by_the_best_so_far(took):
    """A plan that is 5 % faster than the one that was chosen before it; the first of all, else."""
    best = None
    for plan in took:
        if best is None or took[plan] < 0.95 * took[best]:
            best = plan
    return best


CHEAPEST_THAT_FITS_MISTAKES = """
this is the fastest of all plans, or one near it: it must fit too
    plans if needed(plan) <= memory -> plans
this is the plan that needs the fewest bytes: of those that fit, look at the seconds
    return next( -> return min(took, key=needed, default=None) or next(
this is the slowest plan that fits
    return next( -> return max(took, key=took.get, default=None) or next(
this is the first plan that fits: others may be faster
    in took if took[plan] <= 1.05 * min(took.values()) -> in took
compare each plan with the fastest of all that fit, not with the best so far
    return next( -> return _by_the_best_so_far(took) or next(
a plan that needs exactly the memory fits
    needed(plan) <= memory -> needed(plan) < memory
this is the fastest that fits; an earlier, simpler one takes at most 5 % more
    1.05 * min -> min
of those that take at most 5 % more, take the first
    next(( -> [None, *(
    ), None) -> )][-1]
"""
cheapest_that_fits = build(
    solutions.cheapest_that_fits_solution,
    _cheapest,
    CHEAPEST_THAT_FITS_MISTAKES,
    praise="a loop over all plans is enough: there are hundreds, and each takes microseconds",
)
