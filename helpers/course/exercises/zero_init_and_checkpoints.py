"""Answers of lesson 10: partitioned construction, a resume that forgets nothing; the mistakes made there."""

import contextlib
import functools
import io
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.seeing import helped, returned
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import randn_of_rank, random_of_rank
from helpers.tools.theory.construction import largest_built_in_parts

stubs = Stubs("zero_init_and_checkpoints")


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


keep_shard = stubs.build("keep_shard", Returning(_sharded), together=True)


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


constructor = stubs.build("constructor", Returning(_constructed))


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


RunState = stubs.build("RunState", Returning(_resumed))


largest_in_parts = stubs.formula(
    "largest_in_parts",
    reference=largest_built_in_parts,
    cases=[
        (1e11, 64, 6e8),
        (2e11, 1024, 12e9),
    ],
)


def _changed(function, seed):
    """This rank's shard of a weight whose values each rank has others for."""
    values = random_of_rank(seed).sample(range(1, 100), 8)
    return {"what this rank returned": returned(function(values), list, "return this rank's shard as a list")}


change_a_weight = stubs.build("change_a_weight", Returning(_changed))
