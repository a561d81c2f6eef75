"""Answers of lesson 04: data parallelism, and the mistakes that people make there."""

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.tools.measure.internals import Future
from helpers.tools.measure.messages import listen, listen_to_requests

__all__ = [
    "accumulation_steps",
    "average_gradients",
    "average_in_buckets",
    "exposed_seconds",
    "guess",
    "weighted_gradients",
]

LAYERS, WIDTH = 3, 6


def _model(seed):
    """The same small model on every rank: linear layers of WIDTH x WIDTH with biases."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def _rows(seed, rank):
    """This rank's own part of a batch."""
    return torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1000 * seed + rank))


def _gradients(model, when=""):
    return {
        f"the gradient of {name}{when}": parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def _one_by_one(function, seed):
    import deepspeed.comm as comm

    model = _model(seed)
    model(_rows(seed, comm.get_rank())).square().mean().backward()
    function(model)
    return _gradients(model)


def _sum(model):
    import deepspeed.comm as comm

    for parameter in model.parameters():
        comm.all_reduce(parameter.grad)


def _twice(model):
    import deepspeed.comm as comm

    for parameter in model.parameters():
        comm.all_reduce(parameter.grad)
        parameter.grad /= comm.get_world_size() ** 2


def _first_only(model):
    import deepspeed.comm as comm

    parameter = next(model.parameters())
    comm.all_reduce(parameter.grad)
    parameter.grad /= comm.get_world_size()


def _new_tensor(model):
    import deepspeed.comm as comm

    for parameter in model.parameters():
        total = parameter.grad.clone()
        comm.all_reduce(total)
        total /= comm.get_world_size()


average_gradients = Build(
    "average_gradients",
    _one_by_one,
    mistakes={
        "that is the sum over the ranks; a mean is divided by their number": _sum,
        "that is divided by the number of ranks twice": _twice,
        "only the first parameter was averaged": _first_only,
        "that is this rank's own gradient: the mean must be written into `.grad` itself": _new_tensor,
    },
    praise="a mean of means over equal parts is the mean of all, so every rank now has the gradient of "
    "the whole batch",
)


class _Messages:
    """Notes what becomes of the all-reduces that begin while it is entered: their elements (of fp32), and which
    of them nobody has waited for yet."""

    def __enter__(self):
        self.elements, self.open, self.blocking = [], set(), 0
        self.request_of = {}  # {future: request}
        self.ends = [listen(self.begins), listen_to_requests(self.asked, ("wait", "get_future", "then"))]
        return self

    def begins(self, call):
        if call.operation not in ("all_reduce", "all_reduce_coalesced"):
            return None
        self.elements.append(call.bytes // 4)
        return self.open.add

    def asked(self, request, call, inside):
        request, answer = self.request_of.get(request, request), call()
        if isinstance(answer, Future):
            self.request_of[answer] = request
        else:
            self.open.discard(request)
            self.blocking += inside
        return answer

    def __exit__(self, *problem):
        for end in self.ends:
            end()


def _uneven(seed):
    """The same model on every rank: linear layers of unequal widths; its parameters' elements, in the order
    in which their gradients come."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        widths = [WIDTH, *(3 + int(torch.randint(6, ())) for _ in range(4)), WIDTH, WIDTH]
        model = nn.Sequential(*(nn.Linear(ins, outs) for ins, outs in zip(widths, widths[1:])))
    return model, [parameter.numel() for layer in reversed(model) for parameter in (layer.bias, layer.weight)]


def _left_over(sizes, full):
    """How many elements are in the last bucket, which does not get full; 0 where the last one does."""
    waiting = 0
    for size in sizes:
        waiting = 0 if waiting + size >= full else waiting + size
    return waiting


def _in_buckets(function, seed):
    """Two steps, so that what the first leaves behind is seen; the second leaves out the layer whose
    gradients come first.

    The first bucket of the first step is full to the element, with three or four of twelve gradients; later
    ones overflow, and the last is not full."""
    import deepspeed.comm as comm

    found, sizes, full = {}, [], 0
    while not _left_over(sizes, full):
        model, sizes = _uneven(seed)
        full, seed = sum(sizes[: 3 + seed % 2]), seed + 1
    finish = function(model, full)
    if not callable(finish):
        raise TypeError(
            "average_in_buckets must return a function, to be called after the backward pass; it "
            f"returned {finish!r}"
        )
    for step, layers in ((1, model), (2, model[:-1])):
        with _Messages() as messages:
            layers(_rows(seed + step, comm.get_rank())).square().mean().backward()
            found[f"the elements of the buckets that are sent during the backward pass, step {step}"] = list(
                messages.elements
            )
            found[f"the backward pass waits for no message, step {step}"] = (
                messages.blocking == 0 and len(messages.open) == len(messages.elements)
            )
            finish()
        found[f"every message is waited for, step {step}"] = not messages.open
        found[f"the elements of all messages, step {step}"] = messages.elements
        found |= _gradients(model, f", step {step}")
        model.zero_grad(set_to_none=False)
    return found


def _buckets(
    divide="once", when="full", left_over="sent", waits="at the end", writes="in order", forgets=True
):
    """A reducer that makes the mistake that is named; without one it is right."""

    def average_in_buckets(model, bucket_elements):
        import deepspeed.comm as comm

        ready, under_way, ranks = [], [], comm.get_world_size()

        def send():
            bucket = torch.cat([parameter.grad.flatten() for parameter in ready])
            request = comm.all_reduce(bucket, async_op=True)
            if waits == "at once":
                request.wait()
            under_way.append((request, bucket, list(ready)))
            ready.clear()

        def add(parameter):
            waiting = sum(one.numel() for one in ready)
            if when == "before it overflows" and ready and waiting + parameter.numel() > bucket_elements:
                send()
            ready.append(parameter)
            full = {"full": bucket_elements, "overfull": bucket_elements + 1}.get(when, float("inf"))
            if waiting + parameter.numel() >= full:
                send()

        def finish():
            if ready and left_over == "sent":
                send()
            for request, bucket, parameters in under_way:
                if waits == "at the end":
                    request.wait()
                mean = bucket / {"never": 1, "once": ranks, "twice": ranks**2, "by two": 2}[divide]
                parameters = parameters[::-1] if writes == "backwards" else parameters
                for parameter, part in zip(
                    parameters, mean.split([parameter.numel() for parameter in parameters])
                ):
                    if writes != "nowhere":
                        parameter.grad.copy_(part.view_as(parameter))
            if forgets:
                under_way.clear()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(add)
        return finish

    return average_in_buckets


average_in_buckets = Build(
    "average_in_buckets",
    _in_buckets,
    mistakes={
        "that is the sum over the ranks; divide by their number": _buckets(divide="never"),
        "that is divided by the number of ranks twice": _buckets(divide="twice"),
        "divide by the number of ranks, which is not always two": _buckets(divide="by two"),
        "all gradients waited for the end of the backward pass: send a bucket from the hook, as "
        "soon as it is full": _buckets(when="never"),
        "a bucket is sent when the gradient that fills it has come, not before the one that "
        "would make it overflow": _buckets(when="before it overflows"),
        "a bucket with exactly `bucket_elements` elements is full": _buckets(when="overfull"),
        "the hook waits for its message, and the backward pass stands still meanwhile: wait in "
        "the function that you return": _buckets(waits="at once"),
        "the last bucket, which never got full, was not sent": _buckets(left_over="kept"),
        "the buckets of one step are written back again in the next: "
        "forget them when they are done": _buckets(forgets=False),
        "the parts of a bucket belong to the parameters in the order in which they were put in": _buckets(
            writes="backwards"
        ),
        "that is this rank's own gradient: the means must be written back into `.grad`": _buckets(
            writes="nowhere"
        ),
    },
    praise="the last layers' gradients travel while the first layers' are still being computed",
)


def _micro_batches(seed, rank):
    """Two micro-batches of rows and targets; a target of -100 is padding and counts for nothing.

    The numbers of targets differ from micro-batch to micro-batch and from rank to rank, so that no two ways
    to weigh agree.
    """
    random = torch.Generator().manual_seed(1000 * seed + rank)
    found = []
    for count in (1 + seed % 3, 4 + rank % 4):
        targets = torch.randint(WIDTH, (8,), generator=random)
        targets[count:] = -100
        found.append((torch.randn(8, WIDTH, generator=random), targets))
    return found


def _weighted(function, seed):
    import deepspeed.comm as comm

    model = _model(seed)
    function(model, _micro_batches(seed, comm.get_rank()))
    return _gradients(model)


def _weighted_by(loss, average=True, tokens_of="all ranks", sums="once"):
    """A mistaken way to weigh: `loss(logits, targets, tokens, micro-batches)` is what the backward pass
    starts from."""

    def weighted_gradients(model, micro_batches):
        import deepspeed.comm as comm

        tokens = sum((targets != -100).sum() for _, targets in micro_batches)
        if tokens_of == "all ranks":
            comm.all_reduce(tokens)
        for rows, targets in micro_batches:
            loss(model(rows), targets, tokens, len(micro_batches)).backward()
        for parameter in model.parameters():
            if sums == "once":
                comm.all_reduce(parameter.grad)
            if average:
                parameter.grad /= comm.get_world_size()

    return weighted_gradients


def _summed(logits, targets, tokens, count):
    return F.cross_entropy(logits, targets, reduction="sum") / tokens


weighted_gradients = Build(
    "weighted_gradients",
    _weighted,
    mistakes={
        "that is a mean of means: a token in a short micro-batch counts more than "
        "one in a long micro-batch": _weighted_by(
            lambda logits, targets, tokens, count: F.cross_entropy(logits, targets) / count
        ),
        "that is a sum of the micro-batches' means: a token in a short micro-batch counts more "
        "than one in a long micro-batch": _weighted_by(
            lambda logits, targets, tokens, count: F.cross_entropy(logits, targets)
        ),
        "that weighs the tokens of one rank equally, but not those of different ranks: count the "
        "tokens of all ranks": _weighted_by(_summed, tokens_of="this rank"),
        "that is divided by the ranks once too often: the sums of all ranks belong to the tokens "
        "of all ranks": _weighted_by(_summed),
        "that is this rank's part: the gradients of all ranks must be summed": _weighted_by(
            _summed, average=False, sums="never"
        ),
    },
    praise="sums and counts are added over micro-batches and ranks, and divided once, so every token "
    "counts the same",
)

accumulation_steps = Exercise(
    reference=lambda train_batch, micro_batch, ranks: train_batch / (micro_batch * ranks),
    cases=(
        {"train_batch": 96, "micro_batch": 2, "ranks": 4},
        {"train_batch": 1024, "micro_batch": 1, "ranks": 64},
    ),
    mistakes={
        "every rank runs micro-batches of its own": lambda train_batch, micro_batch, ranks: (
            train_batch / micro_batch
        ),
        "that is a rank's share of the batch; it is cut into "
        "micro-batches": lambda train_batch, micro_batch, ranks: train_batch / ranks,
        "that is what all ranks see in one pass; how "
        "many passes make a batch?": lambda train_batch, micro_batch, ranks: micro_batch * ranks,
        "the other way round": lambda train_batch, micro_batch, ranks: micro_batch * ranks / train_batch,
    },
    praise="with twice the ranks, half the accumulation keeps the same batch, and so the same learning",
)


def _exposed(compute, accumulation, message):
    return max(0.0, message - 2 / 3 * compute / accumulation)


exposed_seconds = Exercise(
    reference=_exposed,
    cases=(
        {"compute": 0.6, "accumulation": 4, "message": 0.2},
        {"compute": 0.6, "accumulation": 1, "message": 0.2},
        {"compute": 3.0, "accumulation": 8, "message": 0.5},
    ),
    mistakes={
        "only the last micro-batch's backward "
        "pass has gradients to send": lambda compute, accumulation, message: max(
            0.0, message - 2 / 3 * compute
        ),
        "nothing can be sent during a forward pass: two thirds of "
        "a micro-batch are backward": lambda compute, accumulation, message: max(
            0.0, message - compute / accumulation
        ),
        "time cannot be gained back: where the message is "
        "hidden, nothing is exposed": lambda compute, accumulation, message: (
            message - 2 / 3 * compute / accumulation
        ),
        "a backward pass takes two thirds of a "
        "micro-batch's time, not one": lambda compute, accumulation, message: max(
            0.0, message - compute / 3 / accumulation
        ),
        "that is the whole message; part of it "
        "hides behind the backward pass": lambda compute, accumulation, message: message,
    },
    praise="accumulation saves bytes and shrinks what they can hide behind",
)
