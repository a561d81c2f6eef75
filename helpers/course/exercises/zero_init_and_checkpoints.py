"""Answers of lesson 10: partitioned construction, a resume that forgets nothing; the mistakes made there."""

import contextlib
import functools
import io
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.builds import RankExercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped
from helpers.course.exercises.solutions import zero_init_and_checkpoints as solutions
from helpers.course.exercises.trials import build, formula, randn_of_rank, returned
from helpers.tools.theory.construction import largest_built_in_parts


class _Fresh(nn.Module):
    """A module as its constructor leaves it: own parameters of several sizes and dtypes, and a child whose
    constructor has run before.  Every rank has drawn other numbers."""

    def __init__(self, seed, ranks):
        super().__init__()
        self.child = nn.Linear(3, 2)
        self.weight = nn.Parameter(randn_of_rank(seed, 5, 2 * ranks + 1 + seed % 3))
        self.bias = nn.Parameter(randn_of_rank(seed + 1, 3 * ranks).bfloat16())
        self.scale = nn.Parameter(randn_of_rank(seed + 2, 1))


def _elements_kept(tensor):
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _sharded(function, seed):
    """What is left of each parameter, and this rank's shard; a child's parameters stay as they are."""
    module = _Fresh(seed, dist.get_world_size())
    parameters, child = dict(module.named_parameters(recurse=False)), module.child.weight.detach().clone()
    words = "without padding `chunk` makes fewer parts than there are ranks: pad with zeros to a multiple of "
    with helped({"tuple index": f"{words}N first"}):
        function(module)
    seen = {}
    for name, before in parameters.items():
        parameter, due = getattr(module, name), f"{name} must have its part as `.shard`, a tensor"
        shard = returned(getattr(parameter, "shard", None), torch.Tensor, due)
        seen |= {
            f"the shape of {name}.data afterwards": str(tuple(parameter.shape)),
            f"{name}.shard": shard.detach().clone(),
            f"the dtype of {name}.shard": str(shard.dtype),
            f"elements of memory that {name}.shard keeps": _elements_kept(shard),
            f"elements of memory that {name} itself keeps": _elements_kept(parameter),
            f"the dtype of {name}.data afterwards": str(parameter.dtype),
            f"{name}.shard belongs to no graph of autograd": not shard.requires_grad,
            f"{name}.full_shape": str(tuple(getattr(parameter, "full_shape", ()))),
            f"{name} is the same parameter as before": parameter is before,
        }
    return seen | {"the child's weight is as it was": torch.equal(module.child.weight, child)}


PADDED = "torch.nn.functional.pad(part, (0, size - len(part)))"
PART = "[rank * size : (rank + 1) * size]"
VIEW = "F.pad(parameter.detach().flatten(), (0, ranks * size - parameter.numel())).chunk(ranks)[rank]"
RELEASE = "parameter.data = parameter.data.new_empty(0)"
ANEW = """new = torch.nn.Parameter(parameter.data.new_empty(0))
        vars(new).update(vars(parameter))
        setattr(module, name, new)"""
keep_shard = build(solutions.keep_shard_solution, _sharded, together=True, mistakes={
    ("comm.broadcast(parameter.data, 0)", "pass"):
        "every rank has drawn other numbers: broadcast rank 0's before you cut",
    (PADDED, VIEW): "that is a view of the flattened tensor and keeps all of its memory alive: `.clone()` it",
    (RELEASE, "pass"): "the parameter still holds all of its elements: let its `.data` be an empty tensor",
    (".data.new_empty(0)", ".data.flatten()[:0]"):
        "a slice of no elements still keeps the whole tensor's memory alive: take a new empty tensor",
    (".data.new_empty(0)", ".data[:0]"): "a slice of no rows still keeps the whole tensor's memory alive, "
        "and its shape is not (0,): `.data.new_empty(0)`",
    ("parameter.data.new_empty(0)", "torch.empty(0)"):
        "`torch.empty(0)` is fp32, whatever the parameter was: `.data.new_empty(0)` keeps the dtype",
    ("for parameter in module.parameters(recurse=False):",
        "for name, parameter in list(module.named_parameters(recurse=False)):", RELEASE, ANEW):
        "others, such as an optimizer, refer to the parameter: keep the object and change its `.data`",
    (PADDED, "part.clone()"): "without padding the last rank's shard is shorter, or there is none: pad with "
        "zeros to a multiple of N first",
    ("-(-parameter.numel() // ranks)", "parameter.numel() // ranks"):
        "rounded down, the last elements belong to nobody: round the shard's size up, and pad",
    (PART, "[:size]"): "that is rank 0's shard on every rank",
    (PART, "[rank::ranks]"): "a shard is a range of neighbouring elements, not every N-th",
    ("recurse=False", ""):
        "a child's parameters were dealt with when the child was built: `parameters(recurse=False)`",
    ("= parameter.shape", "= torch.Size([0])"): "the shape was taken after the parameter had been emptied",
    (".detach().flatten()", ".detach().float().flatten()"): "a shard keeps the dtype of its parameter",
    (".detach()", ""): "the shard must not be part of a graph of autograd: `detach()` first",
}, praise="each rank keeps its range of rank 0's values, and nothing else stays in memory")  # fmt: skip


class _Base(nn.Module):
    def __init__(self, width, *, value=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), value))


class _Derived(_Base):
    def __init__(self, width):
        super().__init__(width, value=2.0)
        self.extra = nn.Parameter(torch.ones(3))


class _Outer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = _Base(width, value=3.0), _Derived(width)
        self.own = nn.Parameter(torch.ones(width))


def _note(looks, module):
    """Note a module's class, and the names and sums of its own parameters if it is built."""
    parameters = getattr(module, "_parameters", {}).items()
    sums = [f"{name} {parameter.sum().item():g}" for name, parameter in parameters]
    looks.append([type(module).__name__.strip("_"), *sums])


def _tried(action):
    """What an action returns, and the name of the error that it raises."""
    try:
        return action(), "none"
    except Exception as error:
        return None, type(error).__name__


def _constructed(function, seed):
    """Which modules are handed on, in which order and state; by keyword, nested and derived."""
    width = 2 + seed % 5
    made, error = _tried(lambda: function(_Base, _Base.__init__, id))
    seen = {"what the call of your function itself raises": error, "it returns a function": callable(made)}
    builds = {
        "a base class": lambda: _Base(width),
        "a keyword": lambda: _Base(width, value=4.0),
        "a derived class": lambda: _Derived(width),
        "a module with children": lambda: _Outer(width),
    }
    for case, make in builds.items() if callable(made) else ():
        looks = []
        with contextlib.ExitStack() as patched:
            for kind in (_Base, _Derived, _Outer):
                init = function(kind, kind.__init__, functools.partial(_note, looks))
                patched.enter_context(mock.patch.object(kind, "__init__", init))
            _, seen[f"the error while {case} is built"] = _tried(make)
        seen[f"what is handed on while {case} is built"] = looks
    return seen


BUILDING = "build(module, *arguments, **options)"
constructor = build(solutions.constructor_solution, _constructed, mistakes={
    ("if type(module) is kind:", "if False:", BUILDING, f"then(module)\n        {BUILDING}"):
        "before its constructor has run a module has no parameters: build first",
    ("type(module) is kind", "True"): "a derived class calls the constructor of its parent, whose end is not "
        "the module's: compare `type(module)` with `kind`",
    ("arguments, **options):", "arguments):", BUILDING, "build(module, *arguments)"):
        "constructors are given keywords too: take `*arguments, **options` and hand both on",
    ("then(module)", "then(kind)"): "`then` wants the module that was built, not its class",
    (BUILDING, "pass"): "the module was never built: call `build(module, ...)`",
    (BUILDING, "build(*arguments, **options)"):
        "a constructor takes the module itself first: `build(module, *arguments, **options)`",
    (BUILDING, "kind.__init__(module, *arguments, **options)"):
        "`kind.__init__` is the new constructor by now and calls itself for ever: call `build`",
    ("return init", "return build"): "nothing is handed on: the new constructor must call `then(module)`",
    ("then(module)", "then(module)\n        return module"):
        "a constructor returns nothing, else Python refuses: leave out `return module`",
    ("return init", "return init()"):
        "nothing is to be built yet: define a function that builds when it is called, and return that",
    ("return init", "what_it_returns = None\n    return what_it_returns"):
        "`constructor` is to return the function `init` itself, not what it returns",
}, praise="the model's code does not notice that you cut up each module as soon as it is built")  # fmt: skip


class _Run:
    """A model with dropout, its optimizer, a schedule that warms up, and batches, which it counts itself."""

    def __init__(self, seed):
        self.model, self.position, self.seed, warmup = nn.Linear(6, 3), 0, seed, 5 + seed % 4
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.adam, 1 / warmup, total_iters=warmup)

    def next(self):
        self.position += 1
        return randn_of_rank(self.seed + self.position, 4, 6)

    def train(self, steps):
        """Three tuples: the positions of the batches, the learning rates, and the losses."""
        rows = []
        for _ in range(steps):
            position, rate = self.position, self.adam.param_groups[0]["lr"]
            loss = self.model(F.dropout(self.next(), 0.3)).square().mean()
            loss.backward()
            self.adam.step()
            self.adam.zero_grad()
            self.schedule.step()
            rows.append((position, rate, loss.item()))
        return zip(*rows)


def _resumed(kind, seed):
    """Three steps after a resume, with weights and optimizer states put back by the trial, and three steps of
    the run that was saved.  Every rank's generator is elsewhere."""
    torch.manual_seed(seed % 10**6 + 7 * dist.get_rank())
    run, file = _Run(seed), io.BytesIO()
    run.train(2 + seed % 2)
    state = returned(kind(run.schedule, run).state_dict(), dict, "state_dict must return a dict")
    try:
        torch.save({"weights": run.model.state_dict(), "adam": run.adam.state_dict(), "rest": state}, file)
    except Exception:
        return {"the state can be written to a file": False}
    _, _, losses_unbroken = run.train(3)
    torch.manual_seed(seed % 10**6 + 1)  # another process, whose generator is elsewhere
    other = _Run(seed)
    kind(other.schedule, other).state_dict()  # overwrites what is kept outside of the dict
    file.seek(0)
    saved, run = torch.load(file, weights_only=False), _Run(seed)
    run.model.load_state_dict(saved["weights"])
    run.adam.load_state_dict(saved["adam"])
    kind(run.schedule, run).load_state_dict(saved["rest"])
    positions, rates, losses = run.train(3)
    return {
        "the state can be written to a file": True,
        "positions of the three batches after the resume": positions,
        "learning rates of the three steps after the resume": rates,
        "losses of the three steps after the resume": losses,
        "the next random numbers after the resume": torch.rand(3),
        "losses of the run that was saved, and goes on": losses_unbroken,
    }


NO_SCHEDULE = ('self.schedule.load_state_dict(state["schedule"])', "pass")
NO_POSITION = ('self.batches.position = state["position"]', "pass")
NO_DEVICE = ('deepspeed.get_accelerator().set_rng_state(state["random, device"])', "pass")
GET_CPU, SET_CPU = 'state["random, CPU"] = torch.get_rng_state()', 'torch.set_rng_state(state["random, CPU"])'
NO_RANDOM = (SET_CPU, "pass", *NO_DEVICE)
RunState = build(solutions.RunState_solution, _resumed, mistakes={
    (*NO_SCHEDULE, *NO_POSITION, *NO_RANDOM): "nothing was put back",
    (*NO_POSITION,): "the data begin anew: keep the position of the batches",
    ('= state["position"]', '= state["position"] + 1'):
        "`position` counts the batches that were taken, so it is the next one already: put it back as it was",
    ('= state["position"]', '= state["position"] - 1'):
        "the last batch before the break is trained on again: put `position` back as it was",
    (*NO_SCHEDULE,): "the schedule begins anew: it has a `state_dict()` and a `load_state_dict(state)`",
    (*NO_RANDOM,):
        "dropout draws other numbers than in the unbroken run: keep the state of torch's random generator",
    (SET_CPU, "torch.manual_seed(0)", *NO_DEVICE): "a seed begins a new series of numbers; the unbroken run "
        "is in the middle of one: keep the generator's state",
    (SET_CPU, "torch.manual_seed(torch.initial_seed())", *NO_DEVICE):
        "the first seed begins the series anew; the unbroken run is in the middle of it: keep the state",
    (GET_CPU, f'{GET_CPU}\n        torch.distributed.broadcast(state["random, CPU"], 0)', *NO_DEVICE):
        "every rank's generator is elsewhere: each keeps its own state, not rank 0's",
    (GET_CPU, "type(self).outside = torch.get_rng_state()", SET_CPU,
        "torch.set_rng_state(type(self).outside)", *NO_DEVICE): "another process finds only what is in the "
        "dict: put the generator's state into it, not into a variable",
    (*NO_SCHEDULE, *NO_POSITION): "position and schedule begin anew",
    (*NO_SCHEDULE, *NO_RANDOM): "the schedule begins anew, and the random numbers are others",
    (*NO_POSITION, *NO_RANDOM): "the data begin anew, and the random numbers are others",
    ("self.schedule.state_dict()", "lambda: self.schedule"):
        "keep plain values and tensors, which can be written to a file",
    (GET_CPU, f"{GET_CPU}\n        self.batches.next()"):
        "the run goes on after it was saved: take no batch from it, and draw no number",
}, praise="the steps after the break are those of the run that was never broken, on every rank (checked on "
    "the CPU: on a GPU dropout draws from the device's generator, whose state has to be kept as "
    "well)")  # fmt: skip


largest_in_parts = formula(solutions.largest_in_parts_solution, reference=largest_built_in_parts, cases=[
    (1e11, 64, 6e8), (2e11, 1024, 12e9),
], mistakes={
    (" * ranks / 2", " / 2"): "that is what one GPU holds of it; the model has its shards on all ranks",
    ("ranks / 2", "ranks / 4"): "parts are of the model in bf16",
    ("ranks / 2", "ranks / 16"): "to build takes the parameters alone; sixteen bytes are what training holds",
    ("6 * largest", "2 * largest"): "a matrix is made in fp32 and cast: six bytes for a moment",
    ("6 * largest", "4 * largest"): "in fp32, and its cast in bf16 beside it: six bytes for a moment",
    ("(memory - 6 * largest)", "memory"): "for a moment the largest tensor is unsharded, beside the shards",
    ("(memory - 6 * largest) * ranks", "(memory * ranks - 6 * largest)"):
        "every rank makes the largest tensor, so each has so much less",
    ("(memory - 6 * largest) * ranks", "memory"): "that is the model built unsharded",
}, praise="a rank holds its shards and, for a moment, the tensor that it is about to cut")  # fmt: skip


def _part_of(given, whose, part):
    """A part of the values that a rank was given."""
    size = 8 // len(given)
    return given[whose]["values"][part * size : (part + 1) * size]


class _WeightExercise(RankExercise):
    def wrong(self, reports, given):
        """As for any exercise, and a word where all ranks return small numbers, drawn by the layer."""
        words = super().wrong(reports, given)
        lists = [part for part in reports if isinstance(part, list) and part]
        are_small = len(lists) == len(reports) and all(0 < abs(x) < 1 for part in lists for x in part)
        drawn = "those are the values that the layer was built with: without `modifier_rank` what you write "
        return f"{words}; {drawn}is dropped" if words and are_small else words


change_a_weight = _WeightExercise(
    inputs=lambda ranks, random: [{"values": random.sample(range(1, 100), 8)} for _ in range(ranks)],
    expected=lambda rank, given: _part_of(given, 0, rank),
    mistakes={
        "that is the whole weight: your shard is in `ds_tensor`": lambda rank, given: given[0]["values"],
        "those are this rank's own values: rank 0's are asked for, and "
        "`modifier_rank` says whose count": lambda rank, given: _part_of(given, rank, rank),
        "every rank's shard begins where the one before ends": lambda rank, given: _part_of(given, 0, 0),
    },
    solution=solutions.change_a_weight_solution,
    praise="the weight exists only while it is gathered; on release, rank 0's values go "
    "into every rank's shard",
)
