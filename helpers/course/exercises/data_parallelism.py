"""Answers of lesson 04: data parallelism, and the mistakes that people make there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.seeing import returned
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import randn_of_rank

if TYPE_CHECKING:
    from helpers.course.exercises.seeing import See

stubs = Stubs("data_parallelism")

WIDTH = 6


# torch's own generator is alike on all ranks at the beginning of a trial, and so are models and sizes.


def _model(widths=(WIDTH,) * 4):
    """Linear layers with biases."""
    return nn.Sequential(*(nn.Linear(ins, outs) for ins, outs in zip(widths, widths[1:])))


def _gradients(model, when=""):
    return {f"the gradient of {name}{when}": value.grad.clone() for name, value in model.named_parameters()}


def _averaged(function, seed):
    model = _model()
    model(randn_of_rank(seed, 5, WIDTH)).square().mean().backward()
    function(model)
    return _gradients(model)


average_gradients = stubs.build("average_gradients", Returning(_averaged), together=True)


def _is_left_over(sizes, full):
    """Whether the last bucket does not get full."""
    waiting = 0
    for size in sizes:
        waiting = 0 if waiting + size >= full else waiting + size
    return waiting > 0


@stubs.in_ranks()
def average_in_buckets(see: See, function: Callable) -> None:
    """Two steps, so that what the first leaves behind is seen; the second leaves out the layer whose
    gradients come first.  Layers have unequal widths.  The first bucket of the first step is full to the
    element, with three or four of twelve gradients; later ones overflow, and the last is not full."""
    sizes, full = [], 0
    while not _is_left_over(sizes, full):
        model = _model([WIDTH, *torch.randint(3, 9, (4,)).tolist(), WIDTH, WIDTH])
        sizes = [parameter.numel() for layer in reversed(model) for parameter in (layer.bias, layer.weight)]
        full = sum(sizes[: 3 + see.seed % 2])
    due = "average_in_buckets must return a function, to be called after the backward pass"
    finish = returned(function(model, full), Callable, due)
    for step in see.steps(2):
        layers = model[:-1] if step == 2 else model
        with Calls() as calls:
            layers(randn_of_rank(see.seed + step, 5, WIDTH)).square().mean().backward()
            sizes = [call.elements for call in calls.made]
            see("the elements of the buckets that are sent during the backward pass", sizes)
            see("the backward pass waits for no message", not calls.waited)
            finish()
            see.meet()
        see("every message is waited for", calls.all_waited_for)
        see("all messages", [str(call) for call in calls.made])
        for name, gradient in _gradients(model).items():
            see(name, gradient)
        model.zero_grad(set_to_none=False)


def _micro_batches(seed):
    """Two micro-batches of rows and targets; a target of -100 is padding and counts for nothing.

    The numbers of targets differ from micro-batch to micro-batch and from rank to rank, so that no two ways
    to weigh agree.
    """
    random, batches = torch.Generator().manual_seed(1000 * seed + dist.get_rank()), []
    for count in (1 + seed % 3, 4 + dist.get_rank() % 4):
        targets = torch.randint(WIDTH, (8,), generator=random)
        targets[count:] = -100
        batches.append((torch.randn(8, WIDTH, generator=random), targets))
    return batches


def _weighted(function, seed):
    model = _model()
    function(model, _micro_batches(seed))
    return _gradients(model)


weighted_gradients = stubs.build("weighted_gradients", Returning(_weighted), together=True)


accumulation_steps = stubs.formula("accumulation_steps", [(96, 2, 4), (1024, 1, 64)])


exposed_seconds = stubs.formula("exposed_seconds", [(0.6, 4, 0.2), (0.6, 1, 0.2), (3.0, 8, 0.5)])
