"""Answers of lesson 08: the bucketed reducer of ZeRO-2, and the mistakes that people make there."""

import gc
from collections.abc import Callable
from itertools import zip_longest

import torch
from torch import distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F  # noqa: F401 (edits call it)
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped, own_group
from helpers.course.exercises.solutions import zero_2 as solutions
from helpers.course.exercises.trials import build, formula, returned
from helpers.tools.measure.traffic import Traffic

REDUCER_HINTS = {
    "non-empty list of Tensors": "a bucket may hold nothing of an owner's: then there is nothing to send",
    "match the broadcast shape": "a gradient across a partition boundary has two owners: cut it there",
    "The size of tensor a (": "place p of the flat tensor is `own[p - rank * S]`, and of a "
    "gradient `gradient[p - start]`",
}


def _rehearsed(function, bucket, own):
    """Whether all ranks would call the same, in words, and whether they wait for what they begin.  Nothing is
    sent, so that no rank can hang."""
    with Calls(carry_out=False) as calls:
        function({start: gradient.clone() for start, gradient in bucket.items()}, own.clone())
    by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, [str(call) for call in calls.made], group=own_group())
    for rank, theirs in enumerate(by_rank):
        for call, other in zip_longest(by_rank[0], theirs, fillvalue="nothing"):
            if call != other:
                return f"rank 0 calls {call}, rank {rank} calls {other}", True
    return "alike", calls.all_waited_for


def _buckets(seed, ranks):
    """{where a gradient begins: its elements} of three buckets, and the elements of a shard.  The first
    touches all owners, and its second gradient lies across a partition boundary.  The second touches the
    first rank's shard only.  The third is the first again: a further micro-batch."""
    shard = 12 + seed % 5
    first = {shard + 2: (ranks - 1) * shard - 4 - seed % 2, shard - 1: 3, shard - 3: 2}
    return [first, {4: shard - 7, 0: 4}, first], shard


def _reduced(function, seed):
    """In fp32 and bf16: this rank's shard after each bucket, the messages, and the bytes."""
    rank, ranks, values = dist.get_rank(), dist.get_world_size(), {}
    buckets, shard = _buckets(seed, ranks)
    for dtype in (torch.float32, torch.bfloat16):
        own = torch.zeros(shard, dtype=dtype)
        for number, places in enumerate(buckets, 1):
            by_rank = [
                {start: (torch.randint(-8, 9, (count,)) / 8).to(dtype) for start, count in places.items()}
                for _ in range(ranks)
            ]
            owners = {at // shard for start, count in places.items() for at in range(start, start + count)}
            when = f", {str(dtype).removeprefix('torch.')}, bucket {number}"
            with helped(REDUCER_HINTS):
                calls, waited = _rehearsed(function, by_rank[rank], own)
                values[f"what the ranks call{when}"] = calls
                values[f"every message with `async_op` is waited for{when}"] = waited
                if calls != "alike" or not waited:
                    return values
                with Traffic() as traffic:
                    function(by_rank[rank], own)
            messages = sum(message.count for message in traffic.messages)
            needed = sum(places.values()) * own.element_size() * (ranks - 1) / ranks
            sent = round(sum(traffic.ideal.values()) / needed, 1)
            values[f"this rank's shard{when}"] = own.clone()
            values[f"there is at most one message for each owner{when}"] = messages <= len(owners)
            values[f"bytes sent, as multiples of what the owners need{when}"] = max(1.0, sent)
    return values


def _longer(elements):
    """Zeros after an owner's pieces, until a message has so many `elements`, an expression."""
    message = "torch.cat(list(pieces.values()))"
    padded = f"F.pad({message}, (0, {elements} - sum(map(len, pieces.values()))))"
    return message, padded, "(message / ranks)", "(message[: sum(sizes)] / ranks)"


def _all_at_once(bucket, own):
    """All shards, with zeros where the bucket has nothing, in one reduce-scatter."""
    flat, mine = own.new_zeros(dist.get_world_size() * len(own)), torch.zeros_like(own)
    for start, gradient in bucket.items():
        flat[start : start + len(gradient)] = gradient
    dist.reduce_scatter_tensor(mine, flat)
    own += mine / dist.get_world_size()


REDUCE, MEAN = "comm.reduce(message, dst=owner)", "message / ranks"
reduce_bucket = build(solutions.reduce_bucket_solution, _reduced, together=True, mistakes={
    ("dst=owner", "dst=rank"):
        "`dst` is the owner of the pieces, the same on every rank, and not the rank that calls",
    ("range(ranks)", "[rank]"):
        "every rank has a part of each sum: all ranks call all reductions, not only the owner's",
    ("dst=owner", "dst=owner, async_op=True"): "with `async_op=True` a message may still be on its way: call "
        "`.wait()` on what it returns, before you read",
    ("dst=owner", "dst=0"): "each owner's pieces go to that owner: `dst=0` sends all to rank 0",
    (MEAN, "message"): "that is the sum over the ranks; a mean is divided by their number",
    (MEAN, "message / 2"): "divide by the number of ranks, which is not always two",
    (MEAN, "message / len(bucket)"):
        "divide by the number of ranks, not by that of the gradients in the bucket",
    (REDUCE, "pass"): "that is the mean of nothing but this rank's own gradient: reduce it over the ranks",
    ("own[begin - rank * shard :][: len(piece)] += piece", "pass"):
        "nothing was written into `own`: `own[...] += ...` does so; `own = own + ...` names a new tensor",
    ("+= piece", "= piece"): "`own` holds what earlier micro-batches have brought: add to it",
    ("begin < end", "begin < end and start // shard == owner"):
        "a gradient across a partition boundary belongs to two owners: cut it there",
    ("[begin - start : end - start]", "[begin:end]"):
        "places count from the flat tensor's begin, and a slice from the gradient's: subtract `start`",
    ("pieces = {}", "pieces = pieces if owner else {}"):
        "begin with an empty collection of pieces for each owner: there are those of the owner before",
    (REDUCE, "for part in message.split([*map(len, pieces.values())]):\n"
        "                comm.reduce(part, dst=owner)"): "right, but in a message for each piece: join an "
        "owner's pieces with `torch.cat`, and send them at once",
    (REDUCE, "comm.all_reduce(message)"):
        "right, but an all-reduce gives everybody what only the owner needs, and costs twice the bytes",
    _longer("sum(map(len, bucket.values()))"):
        "right, but each owner gets the whole bucket: send it its own pieces only",
    _longer("shard"):
        "right, but an owner gets its whole shard, with zeros: send it the bucket's pieces only",
    _all_at_once: "right, but the whole flat tensor travels, with zeros: send the bucket's pieces only",
    (REDUCE, f"message = message.float()\n            {REDUCE}"):
        "right, but in four bytes per gradient: send them in their own dtype",
}, praise="one message per owner carries a bucket, however many gradients are in it")  # fmt: skip


RELEASE_HINTS = {
    "'NoneType' object has no attribute": "`.grad` was still None in your hook: register it with "
    "`register_post_accumulate_grad_hook`, and use the parameter that it is called with, not a loop's "
    "variable",
    "cannot access local variable": "an assignment in an inner function makes a new, local name: "
    "empty a bucket by `.clear()`, or declare `nonlocal`",
    "Boolean value of Tensor with more than one value": "look a parameter up in a dict, which compares by "
    "identity; `==`, `in` and `.index` of lists compare elements",
}


class _Reducer:
    """Takes the buckets; notes what was in them, and how many gradients of earlier ones still have memory.
    It sees gradients as soon as they are made, and so those that are kept while the bucket has copies."""

    def __init__(self, parameters):
        self.places, self.gradients, self.alive, self.earlier, self.fresh = [], [], [], [], []
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda parameter: self.note(parameter.grad))

    def note(self, gradient):
        self.fresh.append(StorageWeakRef(gradient.untyped_storage()))

    def living(self):
        gc.collect()
        return sum(not memory.expired() for memory in self.earlier)

    def reduce(self, bucket):
        returned(bucket, dict, "`reduce` takes a bucket, a dict {where a gradient begins: the gradient}")
        for start in bucket:
            returned(start, int, "a bucket's keys are places in the flat tensor, whole numbers")
        self.alive.append(self.living())
        pieces = sorted(bucket.items())
        self.places.append([f"at {start} of shape {tuple(gradient.shape)}" for start, gradient in pieces])
        for _, gradient in pieces:
            self.gradients += gradient.detach().flatten().tolist()
            self.note(gradient)
        self.earlier, self.fresh = self.earlier + self.fresh, []


def _tensors():
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    return sum(tensor.is_floating_point() and tensor.numel() > 0 for tensor in tensors)


def _filled(function, seed):
    """Two backward passes with small, middling and large buckets: what each bucket held when it was reduced,
    and what was still alive then.  The last layer has 15 elements, which fill a bucket of 15 exactly."""
    values = {}
    gc.freeze()  # garbage is looked for among newer objects only: the others would take nearly all the time
    for size in (1, 15, 60 + seed % 20, 10**6):
        torch.manual_seed(seed)
        with helped(RELEASE_HINTS):
            found = _with_buckets_of(size, function, 6 + seed % 3)
        values |= {f"{name}, with buckets of {size:,} elements": value for name, value in found.items()}
    return values


def _with_buckets_of(size, function, width):
    model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 3))
    parameters, left = list(model.parameters()), []
    reducer, before = _Reducer(parameters), _tensors()
    due = "release_by_bucket must return a function, which reduces what is left in the bucket"
    flush = returned(function(parameters, size, reducer.reduce), Callable, due)
    for _ in range(2):
        model(torch.randn(7, 5)).square().mean().backward()
        left.append(sum(parameter.grad is not None for parameter in parameters))
        flush()
    return {
        "gradients left on the parameters after each backward pass": left,
        "buckets that were reduced": len(reducer.places),
        "what the buckets held": reducer.places,
        "the gradients that were reduced": reducer.gradients,
        "gradients of earlier buckets still alive when the next was reduced": reducer.alive,
        "gradients still alive at the end": reducer.living(),
        "tensors that are kept at the end": max(0, _tensors() - before),
    }


FREE, FULL = "parameter.grad = None", "sum(len(gradient) for gradient in bucket.values()) >= bucket_size"
COPY = (".flatten()", ".flatten().clone()")
KEEPS = ("def ready(parameter):", "def ready(parameter, kept=[]):\n        kept.append(parameter.grad)")
release_by_bucket = build(solutions.release_by_bucket_solution, _filled, mistakes={
    (FREE, "pass"):
        "the gradients are still on the parameters: set `.grad` to None as soon as they are in the bucket",
    (FREE, "pass", *COPY): "the gradients, or their copies, are still on the parameters: set `.grad` to None",
    (FREE, "parameter.grad.zero_()", *COPY): "a gradient of zeros takes as much memory: set `.grad` to None",
    (FREE, "parameter.grad.zero_()"): "`.grad.zero_()` releases nothing, and writes zeros into the bucket, "
        "which has the same memory: set `.grad` to None",
    ("bucket.clear()", "pass"): "a bucket that was reduced must be emptied, or its gradients are sent again",
    ("if bucket:", "if True:", "reduce(bucket)", "bucket.clear()\n            reduce(bucket)"):
        "the bucket was empty when it was reduced: reduce first, then clear",
    ("return flush", "return lambda: None"):
        "the last bucket is never full: the function that you return must reduce it",
    ("if bucket:", "if True:"): "where nothing is left in the bucket there is nothing to reduce",
    (FULL, "True"):
        "each gradient was reduced alone: wait until the bucket holds `bucket_size` elements or more",
    (FULL, "sum(counted) >= bucket_size", "def ready(parameter):",
        "def ready(parameter, counted=[]):\n        counted.append(parameter.numel())"):
        "after the first full bucket each gradient was reduced alone: count from zero again when a bucket "
        "is emptied",
    (">=", ">"): "a bucket is full as soon as it holds `bucket_size` elements, not only with more",
    (FULL, "False", "def ready(parameter):", "def ready(parameter):\n"
        "        if bucket and sum(map(len, bucket.values())) + parameter.numel() > bucket_size:\n"
        "            flush()"): "put the gradient in first, and look afterwards whether the bucket is full",
    (FULL, "len(bucket) >= bucket_size"): "`bucket_size` counts elements, not gradients",
    (".flatten()", "", "len(gradient)", "gradient.numel()"):
        "gradients in a bucket have one dimension: `.flatten()`",
    (*KEEPS,): "something else still refers to gradients that were reduced: keep them in the bucket only",
    (*KEEPS, *COPY): "the bucket has copies, and something still refers to the gradients themselves",
    (KEEPS[0], KEEPS[1].replace(".grad", ".grad.clone()")):
        "copies of the gradients are kept beside the bucket",
    (FULL, "False"): "the buckets were reduced at the end only, when all gradients were there",
    ("in parameters:\n        starts", "in reversed(parameters):\n        starts"):
        "where a gradient begins is counted in the order of `parameters`",
    ("offset += parameter.numel()", "offset += len(parameter)"):
        "a matrix has more elements than `len`, which counts its rows: use `.numel()`",
}, praise="each rank keeps its shard, and at most one bucket of gradients beside it at a time")  # fmt: skip


micro_batch_size = formula(solutions.micro_batch_size_solution, [(16, 4, 2), (1024, 8, 64)], mistakes={
    ("(accumulation * ranks)", "accumulation"): "the ranks share the batch",
    ("accumulation * ", ""): "that is a rank's share of a step, which comes in several micro-batches",
}, praise="a step's batch counts all ranks and micro-batches; one call gets one micro-batch")  # fmt: skip
