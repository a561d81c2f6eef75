"""Answers of lesson 15: the three functions of a planner: what a rank holds, how long its step takes, and the
cheapest plan that fits; and the mistakes that people make there."""

import random
from dataclasses import replace
from functools import reduce  # noqa: F401  an edited solution calls it

from helpers.course.exercises.editing import edits
from helpers.course.exercises.engine import Build
from helpers.course.exercises.guesses import guess
from helpers.course.models import GPTSize
from helpers.tools import theory

__all__ = ["cheapest_that_fits", "guess", "moments", "step_seconds"]


def _random(seed):
    """The trial's random numbers, other ones on every rank."""
    import deepspeed.comm as comm

    return random.Random(1000 * seed + comm.get_rank())


def _plan(numbers, stage, tensor=1, pipeline=1, **ways):
    """A plan with random numbers; its step has several micro-batches."""
    import deepspeed.comm as comm

    replicas, heads = comm.get_world_size() * numbers.choice([8, 16]), 16 * numbers.randint(1, 5)
    micro, micro_batches = numbers.choice([1, 2, 3]), numbers.choice([2, 4])
    vocabulary, layers = 64 * numbers.randint(100, 900), 2 * numbers.randint(8, 40) + 1
    ways = {"checkpointed": numbers.random() < 0.5, "fused": numbers.random() < 0.5} | ways
    return theory.Plan(
        size=GPTSize(vocabulary=vocabulary, context=2048, width=64 * heads, layers=layers, heads=heads),
        gpus=replicas * tensor * pipeline,
        batch=replicas * micro * micro_batches,
        sequence=1024,
        stage=stage,
        micro=micro,
        tensor=tensor,
        pipeline=pipeline,
        bucket=numbers.randint(10, 500) * 1_000_000,
        **ways,
    )


def _complete(got, names, what):
    """What a learner's function returned, once it is known to be a dict with all names."""
    if not isinstance(got, dict):
        kind = "nothing" if got is None else f"a {type(got).__name__}"
        raise TypeError(f"{what}: return a dict with {', '.join(names)}, not {kind}")
    if missing := [name for name in names if name not in got]:
        raise KeyError(f"{what}: {', '.join(missing)} is missing")
    return got


def _moments(function, seed):
    numbers, found = _random(seed), {}
    for stage in range(4):
        tensor, pipeline = numbers.choice([1, 2]), numbers.choice([1, 2]) if stage < 2 else 1
        plan = _plan(numbers, stage, tensor, pipeline)
        once = replace(plan, batch=plan.replicas * plan.micro)
        for words, case in (("with several micro-batches", plan), ("with one micro-batch", once)):
            got = _complete(function(case), ("loss", "backward", "step"), f"moments of stage {stage}")
            for moment in ("loss", "backward", "step"):
                found[f"GB at the {moment}, stage {stage}, {words}"] = float(got[moment]) / 1e9
    size = GPTSize(vocabulary=50304, context=2048, width=12288, layers=96, heads=96)
    step = function(theory.Plan(size=size, gpus=64, batch=64, sequence=2048, stage=3))["step"]
    found["GB in the step, stage 3, where each GPU updates more than a sub-group"] = float(step) / 1e9
    return found


def moments_solution(plan):
    states = theory.ideal_bytes(plan.parameters, plan.replicas, plan.stage)
    always = states["parameters"] + states["master weights"] + states["optimizer states"]
    gradients = states["gradients"]
    part = plan.parameters / plan.replicas if plan.stage else plan.parameters  # stage 0 updates everything
    bucket = 2 * plan.bucket if plan.stage else 0  # gradients wait in it until they are reduced together
    loss = always + plan.gathered + plan.activations
    if plan.micro_batches > 1 or plan.stage == 3:  # gradients of earlier micro-batches; stage 3 always
        loss += gradients + (bucket if plan.stage in (1, 3) else 0)  # stage 2 has it in backward alone
    copied = 2 * part if plan.stage in (1, 2) else 0  # cut out of full gradients; stage 3 reduces into place
    backward = always + plan.gathered + gradients + bucket + copied + plan.again
    stepped = min(part, 1e9) if plan.stage == 3 else part  # one sub-group after another
    step = always + 2 * part + plan.copies * stepped + (bucket if plan.stage == 3 else 0)  # stage 3 keeps it
    return {"loss": loss, "backward": backward, "step": step}


STEPPED = "min(part, 1e9) if plan.stage == 3 else part"
moments = Build(
    "moments",
    _moments,
    mistakes=edits(
        moments_solution,
        {
            ("plan.micro_batches > 1 or plan.stage == 3", "plan.stage == 3"): (
                "at the loss the gradients of the micro-batch before are missing (with one micro-batch "
                "there are none)"
            ),
            (
                " or plan.stage == 3:",
                ":",
            ): "stage 3 keeps its part of the gradients, and its bucket, for ever, also with one micro-batch",
            (
                "always + plan.gathered + plan.activations",
                "always + plan.activations",
                "always + plan.gathered + gradients",
                "always + gradients",
            ): "stage 3 has some parameters gathered in both passes: `plan.gathered`",
            (
                "parameters, plan.replicas",
                "parameters, plan.gpus",
                "parameters / plan.replicas",
                "parameters / plan.gpus",
            ): "ZeRO shards among the replicas, not among all GPUs: `plan.replicas`",
            (
                "2 * plan.bucket if plan.stage else 0",
                "0",
            ): "the bucket is missing: 2 bytes for each of `plan.bucket` elements, above stage 0",
            ("2 * part if plan.stage in (1, 2) else 0", "0"): (
                "stages 1 and 2 copy what the partition needs at the end of the backward pass: 2 bytes "
                "for each element of it"
            ),
            (" + plan.again", ""): "in the backward pass one block is complete: `plan.again`",
            (
                "plan.copies * stepped + ",
                "",
            ): "the step makes copies of what it updates: `plan.copies` bytes for each element",
            (
                STEPPED,
                STEPPED.replace("part", "plan.parameters"),
            ): "a rank steps its partition alone above stage 0, and copies no more than that",
            (STEPPED, "part"): "stage 3 steps a sub-group at a time, at most 1e9 elements",
            (
                "ideal_bytes(plan.parameters",
                "ideal_bytes(theory.gpt_parameters(plan.size)",
            ): "a GPU has the parameters of its tensor shard and pipeline stage alone: `plan.parameters`",
        },
    ),
    praise="three moments compete, and another one wins with another plan",
)


def _step_seconds(function, seed):
    numbers, found = _random(seed), {}
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
        plan = _plan(numbers, stage, tensor, pipeline, checkpointed=stage in (1, 3), **ways)
        link, rate = numbers.uniform(5e9, 60e9), numbers.uniform(1e14, 6e14)
        host = plan.gpus // {"": plan.gpus // 8, "one host": 1}.get(hosts, 2)
        cluster = theory.Cluster(gpus=64, memory=80e9, rate=rate, link=link, inside=link * faster, host=host)
        where = f"of stage {stage}, t = {tensor}, p = {pipeline}" + (hosts and f", all GPUs in {hosts}")
        parts = ("work", "bubble", "tensor parallelism", "pipeline", "ZeRO")
        for part, seconds in _complete(function(plan, cluster), parts, f"seconds {where}").items():
            found[f"milliseconds of {part} {where}"] = 1e3 * float(seconds)
    return found


def step_seconds_solution(plan, cluster):
    passes = "checkpointed step" if plan.checkpointed else "step"
    flops = theory.flops_per_token(plan.size, plan.sequence, passes, causal=True) * plan.batch * plan.sequence
    work = flops / (plan.gpus * cluster.rate)
    unit = 2 * plan.micro * plan.sequence * plan.size.width  # bytes of the residual stream
    s, m, t = plan.imbalance, plan.micro_batches, plan.tensor
    reduces = 6 if plan.checkpointed else 4  # checkpointing repeats 2 of them
    reduces += plan.sequence_parallel  # the backward pass gathers inputs: two halves more
    sums = m * plan.layers * reduces * theory.wire_bytes("all_reduce", unit, t)
    all_cards = min(cluster.within, cluster.host * cluster.link)
    zero = theory.zero_wire_bytes(plan.parameters, plan.replicas, plan.stage, 2, m, whole_buckets=True)
    cards = min(cluster.within, max(1, cluster.host // t) * cluster.link)
    in_a_host = plan.gpus // plan.pipeline <= cluster.host  # the GPUs of a stage are neighbours
    between_stages = cluster.within if plan.gpus <= cluster.host else cluster.link
    return {
        "work": work,
        "bubble": work * (s - 1 + (plan.pipeline - s) / m),
        "tensor parallelism": sums / (cluster.within if t <= cluster.host else all_cards),
        "pipeline": 2 * m * unit / t / between_stages if plan.pipeline > 1 else 0.0,
        "ZeRO": zero / (cluster.within if in_a_host else cards),
    }


BUBBLE, GROUP = "(s - 1 + (plan.pipeline - s) / m)", "max(1, cluster.host // t)"
IN_A_HOST, ZERO_LINK = (
    "plan.gpus // plan.pipeline <= cluster.host",
    "(cluster.within if in_a_host else cards)",
)
step_seconds = Build(
    "step_seconds",
    _step_seconds,
    mistakes=edits(
        step_seconds_solution,
        {
            (
                '"checkpointed step" if plan.checkpointed else ',
                "",
            ): "checkpointing computes each block again: 8 FLOPs per parameter and token instead of 6",
            (
                "plan.gpus * cluster.rate",
                "plan.replicas * cluster.rate",
            ): "all GPUs share the work of a step, not the replicas alone",
            (
                BUBBLE,
                "(plan.pipeline - 1) / (m + plan.pipeline - 1)",
            ): "(p - 1) / (m + p - 1) is the bubble's part of the step; of the work it is (p - 1) / m",
            (BUBBLE, "0"): "a pipeline has a bubble: (p - 1) / m of the work",
            (
                BUBBLE,
                "(plan.pipeline - 1) / m",
            ): "where stages are not equal all wait for the longest: `plan.imbalance`",
            (
                "6 if plan.checkpointed else 4",
                "4",
            ): "a checkpointed block's all-reduces of the forward pass come twice: 6 instead of 4",
            ("reduces += plan.sequence_parallel", "pass"): (
                "with sequence parallelism the backward pass gathers the inputs of sharded products once "
                "more: as many bytes as one all-reduce more"
            ),
            (
                "plan.layers",
                "plan.size.layers",
            ): "a GPU has the layers of its pipeline stage alone: `plan.layers`",
            ("m * plan.layers", "plan.layers"): "tensor parallelism sends in each micro-batch",
            (
                "2 * m * unit",
                "m * unit",
            ): "between pipeline stages activations go forward, and as many bytes of gradients back",
            (" if t <= cluster.host else all_cards", ""): (
                "a tensor-parallel group that is larger than a host goes over `cluster.link`, "
                "through the cards "
                "of all GPUs of a host"
            ),
            (
                "cluster.host * cluster.link",
                "cluster.link",
            ): "a group that is larger than a host has all of its cards, not one: `cluster.host * "
            "cluster.link`",
            (
                ZERO_LINK,
                "cluster.within",
            ): "ZeRO's messages go through all hosts: over the cards, `cluster.link` each",
            (
                ZERO_LINK,
                "cards",
            ): "where all GPUs are in one host ZeRO's messages stay inside: `cluster.within`",
            (IN_A_HOST, "plan.replicas <= cluster.host"): (
                "replicas that are no more than a host's GPUs may still lie in several hosts: ask "
                "whether all GPUs fit into one"
            ),
            (IN_A_HOST, "plan.gpus <= cluster.host"): (
                "replicas are of one stage: they stay inside where its GPUs, `plan.gpus // plan.pipeline`, "
                "fit into a host"
            ),
            (f"{GROUP} * ", ""): (
                "a group of replicas has `cluster.host // plan.tensor` GPUs in each host, and sends over "
                "all of their cards"
            ),
            (
                f"min(cluster.within, {GROUP} * cluster.link)",
                f"{GROUP} * cluster.link",
            ): "however many cards there are, inside a host nothing is faster than `cluster.within`",
            (
                GROUP,
                "cluster.host",
            ): "of a host's cards only those of the group's GPUs count: `cluster.host // plan.tensor`",
            (
                "wire_bytes(plan.parameters",
                "wire_bytes(theory.gpt_parameters(plan.size)",
            ): "ZeRO shards the parameters of one GPU, `plan.parameters`, not the whole model's",
            ("plan.replicas", "plan.gpus"): "ZeRO's messages go among the replicas, not among all GPUs",
            ("2, m,", "2, 1,"): "stages 2 and 3 send in each micro-batch: `accumulation=plan.micro_batches`",
        },
    ),
    praise="work, the bubble, and three kinds of messages",
)


def _cheapest(function, seed):
    """Invented plans: numbers alone.  The fastest of all does not fit, the smallest is slow, and a simpler
    plan is almost as fast as the best."""
    numbers, found = _random(seed), {}
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
        found[f"choice {trial}"] = str(function(list(names), needed, seconds, 80))
        found[f"choice {trial}, where each is a little faster than the one before"] = str(small)
        found[f"choice {trial}, where memory is small"] = str(function(list(names), needed, seconds, 10))
    return found


def cheapest_that_fits_solution(plans, needed, seconds, memory):
    took = {plan: seconds(plan) for plan in plans if needed(plan) <= memory}  # the simplest stays first
    return next((plan for plan in took if took[plan] <= 1.05 * min(took.values())), None)


CHOICE = "next((plan for plan in took if took[plan] <= 1.05 * min(took.values())), None)"
BY_THE_BEST_SO_FAR = "reduce(lambda best, plan: plan if took[plan] < 0.95 * took[best] else best, took, {})"
cheapest_that_fits = Build(
    "cheapest_that_fits",
    _cheapest,
    mistakes=edits(
        cheapest_that_fits_solution,
        {
            (
                " if needed(plan) <= memory",
                "",
            ): "this is the fastest of all plans, or one near it: it must fit too",
            (
                CHOICE,
                "min(took, key=needed, default=None)",
            ): "this is the plan that needs the fewest bytes: of those that fit, look at the seconds",
            (CHOICE, "max(took, key=took.get, default=None)"): "this is the slowest plan that fits",
            (CHOICE, "next(iter(took), None)"): "this is the first plan that fits: others may be faster",
            (
                CHOICE,
                BY_THE_BEST_SO_FAR.format("next(iter(took), None)"),
            ): "compare each plan with the fastest of all that fit, not with the best so far",
            ("needed(plan) <= memory", "needed(plan) < memory"): "a plan that needs exactly the memory fits",
            ("1.05 * ", ""): "this is the fastest that fits; an earlier, simpler one takes at most 5 % more",
            (
                CHOICE,
                "[None, *(plan for plan in took if took[plan] <= 1.05 * min(took.values()))][-1]",
            ): "of those that take at most 5 % more, take the first",
        },
    ),
    praise="a loop over all plans is enough: there are hundreds, and each takes microseconds",
)
