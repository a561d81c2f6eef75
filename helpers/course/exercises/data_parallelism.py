"""Answers of lesson 04: data parallelism, and the mistakes that people make there."""

from collections.abc import Callable

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import all_returned
from helpers.course.exercises.solutions import data_parallelism as solutions
from helpers.course.exercises.trials import build, formula, randn_of_rank, returned

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


AVERAGE_GRADIENTS = """
correct: the parts are equal, so the mean of the ranks' means is the whole batch's gradient

that is the sum over the ranks; a mean is divided by their number
    parameter.grad /= comm.get_world_size() -> pass
that is divided by the number of ranks twice
    get_world_size() -> get_world_size() ** 2
only the first parameter was averaged
    model.parameters() -> [next(model.parameters())]
that is this rank's own gradient: the mean must be written into `.grad` itself
    comm.all_reduce(parameter.grad) -> total = parameter.grad.clone()
            comm.all_reduce(total)
    parameter.grad /= -> total /=
"""
average_gradients = build(solutions.average_gradients_solution, _averaged, AVERAGE_GRADIENTS, together=True)


def _is_left_over(sizes, full):
    """Whether the last bucket does not get full."""
    waiting = 0
    for size in sizes:
        waiting = 0 if waiting + size >= full else waiting + size
    return waiting > 0


def _in_buckets(function, seed):
    """Two steps, so that what the first leaves behind is seen; the second leaves out the layer whose
    gradients come first.  Layers have unequal widths.  The first bucket of the first step is full to the
    element, with three or four of twelve gradients; later ones overflow, and the last is not full."""
    values, sizes, full = {}, [], 0
    while not _is_left_over(sizes, full):
        model = _model([WIDTH, *torch.randint(3, 9, (4,)).tolist(), WIDTH, WIDTH])
        sizes = [parameter.numel() for layer in reversed(model) for parameter in (layer.bias, layer.weight)]
        full = sum(sizes[: 3 + seed % 2])
    due = "average_in_buckets must return a function, to be called after the backward pass"
    finish = returned(function(model, full), Callable, due)
    for step, layers in ((1, model), (2, model[:-1])):
        with Calls() as calls:
            layers(randn_of_rank(seed + step, 5, WIDTH)).square().mean().backward()
            sent = f"the elements of the buckets that are sent during the backward pass, step {step}"
            values[sent] = [call.elements for call in calls.made]
            values[f"the backward pass waits for no message, step {step}"] = not calls.waited
            finish()
            all_returned()
        values[f"every message is waited for, step {step}"] = calls.all_waited_for
        values[f"all messages, step {step}"] = [str(call) for call in calls.made]
        values |= _gradients(model, f", step {step}")
        model.zero_grad(set_to_none=False)
    return values


AVERAGE_IN_BUCKETS = """
correct: the last layers' gradients travel while the first layers' are still being computed

that is the sum over the ranks; divide by their number
    bucket /= comm.get_world_size() -> pass
that is divided by the number of ranks twice
    comm.get_world_size() -> comm.get_world_size() ** 2
divide by the number of ranks, which is not always two
    comm.get_world_size() -> 2
all gradients waited for the end of the backward pass: send a bucket from the hook, as soon as it is full
    if sum(one.numel() for one in ready) >= bucket_elements -> if False
a bucket is sent when the gradient that fills it has come, not before the one that would make it overflow
    ready.append(parameter) -> full = sum(map(torch.numel, ready)) + parameter.numel() > bucket_elements
    if sum(one.numel() for one in ready) >= bucket_elements: -> if ready and full:
                send()
            ready.append(parameter)
            if False:
a bucket with exactly `bucket_elements` elements is full
    >= bucket -> > bucket
the hook waits for its message, and the backward pass stands still meanwhile: wait in the function that you
return
    request.wait() -> pass
    ready.clear() -> ready.clear()
            under_way[-1][0].wait()
the last bucket, which never got full, was not sent
    if ready: -> if False:
the buckets of one step are written back again in the next: forget them when they are done
    while under_way: -> for request, bucket, parameters in under_way:
    request, bucket, parameters = under_way.pop(0) -> pass
    bucket /= comm.get_world_size() -> bucket = bucket / comm.get_world_size()
the parts of a bucket belong to the parameters in the order in which they were put in
    sizes = [ -> parameters.reverse()
                sizes = [
that is this rank's own gradient: the means must be written back into `.grad`
    parameter.grad.copy_(part.view_as(parameter)) -> pass
"""
average_in_buckets = build(solutions.average_in_buckets_solution, _in_buckets, AVERAGE_IN_BUCKETS)


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


WEIGHTED_GRADIENTS = """
correct: you add up sums and counts first, and divide once, so every token counts the same

that is a mean of means: a token in a short micro-batch counts more than one in a long micro-batch
    , reduction="sum") / tokens -> ) / len(micro_batches)
    comm.all_reduce(parameter.grad) -> comm.all_reduce(parameter.grad.div_(comm.get_world_size()))
that is a sum of the micro-batches' means: a token in a short micro-batch counts more than one in a long
micro-batch
    , reduction="sum") / tokens -> )
    comm.all_reduce(parameter.grad) -> comm.all_reduce(parameter.grad.div_(comm.get_world_size()))
that weighs the tokens of one rank equally, but not those of different ranks: count the tokens of all ranks
    comm.all_reduce(tokens) -> pass
    comm.all_reduce(parameter.grad) -> comm.all_reduce(parameter.grad.div_(comm.get_world_size()))
that is divided by the ranks once too often: the sums of all ranks belong to the tokens of all ranks
    comm.all_reduce(parameter.grad) -> comm.all_reduce(parameter.grad.div_(comm.get_world_size()))
that is this rank's part: the gradients of all ranks must be summed
    comm.all_reduce(parameter.grad) -> pass
"""
weighted_gradients = build(
    solutions.weighted_gradients_solution, _weighted, WEIGHTED_GRADIENTS, together=True
)


ACCUMULATION_STEPS = """
correct: with twice the ranks, half the accumulation keeps the same batch, and so the same learning

every rank runs micro-batches of its own
    (micro_batch * ranks) -> micro_batch
that is a rank's share of the batch; it is cut into micro-batches
    micro_batch * ranks -> ranks
that is what all ranks see in one pass; how many passes make a batch?
    train_batch / ->
the other way round
    train_batch / (micro_batch * ranks) -> micro_batch * ranks / train_batch
"""
accumulation_steps = formula(
    solutions.accumulation_steps_solution, [(96, 2, 4), (1024, 1, 64)], ACCUMULATION_STEPS
)


EXPOSED_SECONDS = """
correct: accumulation saves bytes, and it also shrinks the backward pass that can hide them

only the last micro-batch's backward pass has gradients to send
    / accumulation ->
nothing can be sent during a forward pass: two thirds of a micro-batch are backward
    2 / 3 * ->
time cannot be gained back: where the message is hidden, nothing is exposed
    max(0.0, -> (
a backward pass takes two thirds of a micro-batch's time, not one
    2 / 3 -> 1 / 3
that is the whole message; part of it hides behind the backward pass
    - 2 / 3 * compute / accumulation ->
"""
exposed_seconds = formula(
    solutions.exposed_seconds_solution, [(0.6, 4, 0.2), (0.6, 1, 0.2), (3.0, 8, 0.5)], EXPOSED_SECONDS
)
