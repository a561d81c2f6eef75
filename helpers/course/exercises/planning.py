"""Answers of lesson 17, a planner: what a rank holds, how long a step takes, the cheapest plan that fits."""

from dataclasses import replace

from torch import distributed as dist
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import complete, random_of_rank
from helpers.course.models import GPTSize
from helpers.tools import theory

stubs = Stubs("planning")


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


moments = stubs.build("moments", Returning(_moments))


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


step_seconds = stubs.build("step_seconds", Returning(_step_seconds))


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


cheapest_that_fits = stubs.build("cheapest_that_fits", Returning(_cheapest))
