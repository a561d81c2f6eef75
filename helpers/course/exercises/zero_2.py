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
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.seeing import helped, returned
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.tools.measure.traffic import Traffic

stubs = Stubs("zero_2")

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


reduce_bucket = stubs.build("reduce_bucket", Returning(_reduced), together=True)


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


release_by_bucket = stubs.build("release_by_bucket", Returning(_filled))


micro_batch_size = stubs.formula("micro_batch_size", [(16, 4, 2), (1024, 8, 64)])
