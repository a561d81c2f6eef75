"""Answers of lesson 04: data parallelism, and the mistakes that people make there."""

from functools import partial

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.editing import edit
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import all_returned

WIDTH = 6


# torch's own generator is alike on all ranks at the beginning of a trial, and so are models and sizes.


def _model(widths=(WIDTH,) * 4):
    """Linear layers with biases."""
    return nn.Sequential(*(nn.Linear(ins, outs) for ins, outs in zip(widths, widths[1:])))


def _own_random(seed):
    """A generator of numbers that differ from rank to rank."""
    return torch.Generator().manual_seed(1000 * seed + dist.get_rank())


def _rows(seed):
    """This rank's own part of a batch."""
    return torch.randn(5, WIDTH, generator=_own_random(seed))


def _gradients(model, when=""):
    return {f"the gradient of {name}{when}": value.grad.clone() for name, value in model.named_parameters()}


# --- averaged after the backward pass


def _averaged(function, seed):
    model = _model()
    model(_rows(seed)).square().mean().backward()
    function(model)
    return _gradients(model)


def average_gradients_solution(model):
    import deepspeed.comm as comm

    for parameter in model.parameters():
        comm.all_reduce(parameter.grad)  # in place: the sum over the ranks
        parameter.grad /= comm.get_world_size()


slip = partial(edit, average_gradients_solution)
average_gradients = Build(
    "average_gradients", _averaged, together=True,
    mistakes={
        "that is the sum over the ranks; a mean is divided by their number":
            slip("parameter.grad /= comm.get_world_size()", "pass"),
        "that is divided by the number of ranks twice": slip("get_world_size()", "get_world_size() ** 2"),
        "only the first parameter was averaged": slip("model.parameters()", "[next(model.parameters())]"),
        "that is this rank's own gradient: the mean must be written into `.grad` itself":
            slip("comm.all_reduce(parameter.grad)",
                "total = parameter.grad.clone()\n        comm.all_reduce(total)", "parameter.grad /=",
                "total /="),
    },
    praise="the parts are equal, so the mean of the ranks' means is the whole batch's gradient",
)  # fmt: skip


# --- averaged in buckets, during the backward pass


def _left_over(sizes, full):
    """Elements of the last bucket where it does not get full; else 0."""
    waiting = 0
    for size in sizes:
        waiting = 0 if waiting + size >= full else waiting + size
    return waiting


def _in_buckets(function, seed):
    """Two steps, so that what the first leaves behind is seen; the second leaves out the layer whose
    gradients come first.  Layers have unequal widths.  The first bucket of the first step is full to the
    element, with three or four of twelve gradients; later ones overflow, and the last is not full."""
    values, sizes, full = {}, [], 0
    while not _left_over(sizes, full):
        model = _model([WIDTH, *torch.randint(3, 9, (4,)).tolist(), WIDTH, WIDTH])
        sizes = [parameter.numel() for layer in reversed(model) for parameter in (layer.bias, layer.weight)]
        full = sum(sizes[: 3 + seed % 2])
    finish = function(model, full)
    if not callable(finish):
        raise TypeError(
            f"average_in_buckets must return a function, to be called after the backward pass, not {finish!r}"
        )
    for step, layers in ((1, model), (2, model[:-1])):
        with Calls() as calls:
            layers(_rows(seed + step)).square().mean().backward()
            sent = [call.elements for call in calls.made]
            values[f"the elements of the buckets that are sent during the backward pass, step {step}"] = sent
            values[f"the backward pass waits for no message, step {step}"] = not calls.waited
            finish()
            all_returned()
        values[f"every message is waited for, step {step}"] = calls.all_waited_for
        values[f"all messages, step {step}"] = [str(call) for call in calls.made]
        values |= _gradients(model, f", step {step}")
        model.zero_grad(set_to_none=False)
    return values


def average_in_buckets_solution(model, bucket_elements):
    import deepspeed.comm as comm

    ready, under_way = [], []  # parameters to be sent; (request, bucket, parameters) that were

    def send():
        bucket = torch.cat([parameter.grad.flatten() for parameter in ready])
        under_way.append((comm.all_reduce(bucket, async_op=True), bucket, list(ready)))
        ready.clear()

    def add(parameter):  # autograd calls this when the gradient is complete
        ready.append(parameter)
        if sum(one.numel() for one in ready) >= bucket_elements:
            send()

    def finish():
        if ready:
            send()  # the last bucket is rarely full
        while under_way:
            request, bucket, parameters = under_way.pop(0)  # and no longer held than it is needed
            request.wait()
            bucket /= comm.get_world_size()
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, part in zip(parameters, bucket.split(sizes)):
                parameter.grad.copy_(part.view_as(parameter))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(add)
    return finish


FULL, DIVIDES = "if sum(one.numel() for one in ready) >= bucket_elements:", "bucket /= comm.get_world_size()"
slip = partial(edit, average_in_buckets_solution)
average_in_buckets = Build(
    "average_in_buckets", _in_buckets,
    mistakes={
        "that is the sum over the ranks; divide by their number": slip(DIVIDES, "pass"),
        "that is divided by the number of ranks twice": slip(DIVIDES, f"{DIVIDES} ** 2"),
        "divide by the number of ranks, which is not always two": slip(DIVIDES, "bucket /= 2"),
        "all gradients waited for the end of the backward pass: send a bucket from the hook, as soon as it "
        "is full": slip(FULL, "if False:"),
        "a bucket is sent when the gradient that fills it has come, not before the one that would make it "
        "overflow":
            slip("ready.append(parameter)",
                "full = sum(map(torch.numel, ready)) + parameter.numel() > bucket_elements",
                f"{FULL}\n            send()",
                "if ready and full:\n            send()\n        ready.append(parameter)"),
        "a bucket with exactly `bucket_elements` elements is full": slip(">= bucket", "> bucket"),
        "the hook waits for its message, and the backward pass stands still meanwhile: wait in the function"
        " that you return":
            slip("request.wait()", "pass", "ready.clear()", "ready.clear()\n        under_way[-1][0].wait()"),
        "the last bucket, which never got full, was not sent": slip("if ready:", "if False:"),
        "the buckets of one step are written back again in the next: forget them when they are done":
            slip("while under_way:", "for request, bucket, parameters in under_way:",
                "request, bucket, parameters = under_way.pop(0)", "pass", DIVIDES,
                "bucket = bucket / comm.get_world_size()"),
        "the parts of a bucket belong to the parameters in the order in which they were put in":
            slip("sizes = [", "parameters.reverse()\n            sizes = ["),
        "that is this rank's own gradient: the means must be written back into `.grad`":
            slip("parameter.grad.copy_(part.view_as(parameter))", "pass"),
    },
    praise="the last layers' gradients travel while the first layers' are still being computed",
)  # fmt: skip


# --- micro-batches with padding


def _micro_batches(seed):
    """Two micro-batches of rows and targets; a target of -100 is padding and counts for nothing.

    The numbers of targets differ from micro-batch to micro-batch and from rank to rank, so that no two ways
    to weigh agree.
    """
    random, batches = _own_random(seed), []
    for count in (1 + seed % 3, 4 + dist.get_rank() % 4):
        targets = torch.randint(WIDTH, (8,), generator=random)
        targets[count:] = -100
        batches.append((torch.randn(8, WIDTH, generator=random), targets))
    return batches


def _weighted(function, seed):
    model = _model()
    function(model, _micro_batches(seed))
    return _gradients(model)


def weighted_gradients_solution(model, micro_batches):
    import deepspeed.comm as comm
    import torch.nn.functional as F

    tokens = sum((targets != -100).sum() for _, targets in micro_batches)
    comm.all_reduce(tokens)  # of all ranks, before the first backward pass
    for inputs, targets in micro_batches:
        (F.cross_entropy(model(inputs), targets, reduction="sum") / tokens).backward()
    for parameter in model.parameters():
        comm.all_reduce(parameter.grad)  # a sum of parts that are divided already


LOSS, OVER_RANKS = ', reduction="sum") / tokens', "comm.all_reduce(parameter.grad)"
AVERAGED = (OVER_RANKS, f"{OVER_RANKS}\n        parameter.grad /= comm.get_world_size()")
slip = partial(edit, weighted_gradients_solution)
weighted_gradients = Build(
    "weighted_gradients", _weighted, together=True,
    mistakes={
        "that is a mean of means: a token in a short micro-batch counts more than one in a long micro-batch":
            slip(LOSS, ") / len(micro_batches)", *AVERAGED),
        "that is a sum of the micro-batches' means: a token in a short micro-batch counts more than one in "
        "a long micro-batch": slip(LOSS, ")", *AVERAGED),
        "that weighs the tokens of one rank equally, but not those of different ranks: count the tokens of "
        "all ranks": slip("comm.all_reduce(tokens)", "pass", *AVERAGED),
        "that is divided by the ranks once too often: the sums of all ranks belong to the tokens of all "
        "ranks": slip(*AVERAGED),
        "that is this rank's part: the gradients of all ranks must be summed": slip(OVER_RANKS, "pass"),
    },
    praise="you add up sums and counts first, and divide once, so every token counts the same",
)  # fmt: skip


# --- formulas


def accumulation_steps_solution(train_batch, micro_batch, ranks):
    return train_batch / (micro_batch * ranks)  # every rank runs its share in micro-batches of its own


slip = partial(edit, accumulation_steps_solution)
accumulation_steps = Exercise(
    reference=accumulation_steps_solution,
    cases=(
        {"train_batch": 96, "micro_batch": 2, "ranks": 4},
        {"train_batch": 1024, "micro_batch": 1, "ranks": 64},
    ),
    mistakes={
        "every rank runs micro-batches of its own": slip("(micro_batch * ranks)", "micro_batch"),
        "that is a rank's share of the batch; it is cut into micro-batches":
            slip("micro_batch * ranks", "ranks"),
        "that is what all ranks see in one pass; how many passes make a batch?": slip("train_batch / ", ""),
        "the other way round":
            slip("train_batch / (micro_batch * ranks)", "micro_batch * ranks / train_batch"),
    },
    praise="with twice the ranks, half the accumulation keeps the same batch, and so the same learning",
)  # fmt: skip


def exposed_seconds_solution(compute, accumulation, message):
    return max(0.0, message - 2 / 3 * compute / accumulation)  # only the last backward pass can hide anything


slip = partial(edit, exposed_seconds_solution)
exposed_seconds = Exercise(
    reference=exposed_seconds_solution,
    cases=(
        {"compute": 0.6, "accumulation": 4, "message": 0.2},
        {"compute": 0.6, "accumulation": 1, "message": 0.2},
        {"compute": 3.0, "accumulation": 8, "message": 0.5},
    ),
    mistakes={
        "only the last micro-batch's backward pass has gradients to send": slip(" / accumulation", ""),
        "nothing can be sent during a forward pass: two thirds of a micro-batch are backward":
            slip("2 / 3 * ", ""),
        "time cannot be gained back: where the message is hidden, nothing is exposed": slip("max(0.0, ", "("),
        "a backward pass takes two thirds of a micro-batch's time, not one": slip("2 / 3", "1 / 3"),
        "that is the whole message; part of it hides behind the backward pass":
            slip(" - 2 / 3 * compute / accumulation", ""),
    },
    praise="accumulation saves bytes, and it also shrinks the backward pass that can hide them",
)  # fmt: skip
