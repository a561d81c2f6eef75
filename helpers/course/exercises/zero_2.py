"""Answers of lesson 08: the bucketed reducer of ZeRO-2, and the mistakes that people make there."""

import gc
from contextlib import contextmanager

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.in_ranks import helped
from helpers.tools.measure.traffic import Traffic

__all__ = ["guess", "micro_batch_size", "reduce_bucket", "release_by_bucket"]


# --- a bucket, to its owners

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "reduce_scatter",
    "reduce_scatter_tensor",
)
REDUCER_HINTS = {
    "expected a non-empty list of Tensors": "a bucket may hold nothing of an owner's: "
    "then there is nothing to send",
    "doesn't match the broadcast shape": "a gradient across a partition boundary "
    "has two owners: cut it there",
    "The size of tensor a (": "place p of the flat tensor is `own[p - rank * S]`, and of a "
    "gradient `gradient[p - start]`",
}


class _Begun:
    """What a message that was started with `async_op` gives back; it knows whether somebody waited for it."""

    def __init__(self):
        self.waited = False

    def wait(self, *timeout):
        self.waited = True

    def is_completed(self):
        return self.waited


@contextmanager
def _noted():
    """Collectives of `deepspeed.comm` are noted instead of run: a list of what was called, in words, and one
    of what was begun with `async_op`."""
    import deepspeed.comm as comm

    calls, begun, real = [], [], {name: getattr(comm, name) for name in (*COLLECTIVES, "reduce")}

    def note(call, async_op):
        calls.append(call)
        begun.extend([_Begun()] * async_op)
        return begun[-1] if async_op else None

    def reduce(tensor, dst, *rest, async_op=False, **named):
        return note(f"reduce of {tensor.numel()} elements to rank {dst}", async_op)

    def noting(name):
        return lambda tensor, *rest, async_op=False, **named: note(name, async_op)

    try:
        for name in COLLECTIVES:
            setattr(comm, name, noting(name))
        comm.reduce = reduce
        yield calls, begun
    finally:
        for name, function in real.items():
            setattr(comm, name, function)


def _rehearsed(function, bucket, own):
    """Whether all ranks would call the same, and wait for what they begin: found without sending anything, so
    that no rank can hang."""
    import deepspeed.comm as comm

    with _noted() as (calls, begun):
        function({start: gradient.clone() for start, gradient in bucket.items()}, own.clone())
    every = [None] * comm.get_world_size()
    comm.all_gather_object(every, calls)
    other = next((rank for rank, theirs in enumerate(every) if theirs != every[0]), None)
    if other is not None:
        pairs = zip(every[0] + [""] * len(every[other]), every[other] + [""] * len(every[0]))
        first, second = next(
            (mine or "nothing", theirs or "nothing") for mine, theirs in pairs if mine != theirs
        )
        return f"rank 0 calls {first}, rank {other} calls {second}", True
    return "alike", all(one.waited for one in begun)


def _buckets(seed, ranks):
    """{where a gradient begins: its elements} of three buckets, in the order of a backward pass, and the
    elements of a shard.

    The first touches all owners, the second the first rank's shard only, the third the same places as the
    first: a further micro-batch.
    """
    shard = 12 + seed % 5
    first = {
        shard - 3: 2,
        shard - 1: 3,
        shard + 2: (ranks - 1) * shard - 4,
    }  # the second of them lies across a partition boundary
    last = max(first)
    first[last] -= seed % 2  # the end of the flat tensor is padding, now and then
    return [dict(reversed(first.items())), {4: shard - 7, 0: 4}, first], shard


def _reduced(function, seed):
    """In fp32 and bf16: this rank's shard after each bucket, the messages, and the bytes."""
    import deepspeed.comm as comm

    rank, ranks, found = comm.get_rank(), comm.get_world_size(), {}
    buckets, shard = _buckets(seed, ranks)
    for dtype in (torch.float32, torch.bfloat16):
        own = torch.zeros(shard, dtype=dtype)
        for number, places in enumerate(buckets, 1):
            every = [
                {start: (torch.randint(-8, 9, (count,)) / 8).to(dtype) for start, count in places.items()}
                for _ in range(ranks)
            ]
            elements = sum(places.values())
            owners = {
                place // shard for start, count in places.items() for place in range(start, start + count)
            }
            when = f", {str(dtype).removeprefix('torch.')}, bucket {number}"
            with helped(REDUCER_HINTS):
                calls, waited = _rehearsed(function, every[rank], own)
                found[f"what the ranks call{when}"] = calls
                found[f"every message with `async_op` is waited for{when}"] = waited
                if calls != "alike" or not waited:
                    return found
                with Traffic() as traffic:
                    function(every[rank], own)
            found[f"this rank's shard{when}"] = own.clone()
            found[f"there is at most one message for each owner{when}"] = sum(
                one.count for one in traffic.messages
            ) <= len(owners)
            needed = elements * own.element_size() * (ranks - 1) / ranks
            found[f"bytes sent, as multiples of what the owners need{when}"] = max(
                1.0, round(sum(traffic.ideal.values()) / needed, 1)
            )
    return found


def _reducing(
    divides="all",
    adds=True,
    joined=True,
    cut="both",
    way="reduce",
    fp32=False,
    writes=True,
    to="owner",
    carries=False,
    waits=True,
):
    """A way to reduce a bucket that makes the mistake that is named; without one it is right."""

    def reduce_bucket(bucket, own):
        import deepspeed.comm as comm

        rank, ranks, shard, pieces = comm.get_rank(), comm.get_world_size(), len(own), {}
        for owner in [rank] if to == "own only" else range(ranks):
            pieces = pieces if carries else {}
            for start, gradient in bucket.items():
                begin, end = max(start, owner * shard), min(start + len(gradient), (owner + 1) * shard)
                if cut == "never" and start // shard != owner:
                    continue
                if begin < end:
                    first = 0 if cut == "absolute" else start
                    pieces[begin] = gradient[begin - first : end - first].clone()
            if not pieces:
                continue
            messages = [torch.cat(list(pieces.values()))] if joined else list(pieces.values())
            messages = [message.float() for message in messages] if fp32 else messages
            for message in messages:
                if way == "reduce":
                    dst = {"owner": owner, "own only": owner, "rank": rank, "first": 0}[to]
                    comm.reduce(message, dst=dst, async_op=True) if not waits else comm.reduce(
                        message, dst=dst
                    )
                elif way == "all":
                    comm.all_reduce(message)
            if owner == rank and writes:
                total = (
                    torch.cat(messages).to(own.dtype)
                    / {"all": ranks, "by two": 2, "never": 1, "bucket": len(bucket)}[divides]
                )
                for begin, part in zip(pieces, total.split([len(piece) for piece in pieces.values()])):
                    place = own[begin - rank * shard :][: len(part)]
                    place.copy_(place + part if adds else part)

    return reduce_bucket


def _too_much(what):
    """Sends each owner the whole bucket, or the whole of its shard, with zeros where the bucket has nothing;
    or all shards in a reduce-scatter."""

    def reduce_bucket(bucket, own):
        import deepspeed.comm as comm

        rank, ranks, shard = comm.get_rank(), comm.get_world_size(), len(own)
        places = torch.cat([torch.arange(start, start + len(gradient)) for start, gradient in bucket.items()])
        values = torch.cat(list(bucket.values()))
        if what == "flat":
            flat, mine = own.new_zeros(ranks * shard), torch.zeros_like(own)
            flat[places] = values
            comm.reduce_scatter_tensor(mine, flat)
            own += mine / ranks
            return
        for owner in range(ranks):
            inside = places // shard == owner
            if not inside.any():
                continue
            message, mine = values.clone(), inside
            if what == "shard":
                message, mine = torch.zeros_like(own), places[inside] - owner * shard
                message[mine] = values[inside]
            comm.reduce(message, dst=owner)
            if owner == rank:
                own[places[inside] - rank * shard] += message[mine] / ranks

    return reduce_bucket


reduce_bucket = Build(
    "reduce_bucket",
    _reduced,
    mistakes={
        "`dst` is the owner of the pieces, the same on every rank, and not the rank that calls": _reducing(
            to="rank"
        ),
        "every rank has a part of each sum: all ranks call all reductions, not only the owner's": _reducing(
            to="own only"
        ),
        "with `async_op=True` a message may still be on its way: call `.wait()` on what it "
        "returns, before you read": _reducing(waits=False),
        "each owner's pieces go to that owner: `dst=0` sends all to rank 0": _reducing(to="first"),
        "that is the sum over the ranks; a mean is divided by their number": _reducing(divides="never"),
        "divide by the number of ranks, which is not always two": _reducing(divides="by two"),
        "divide by the number of ranks, not by that of the gradients in the bucket": _reducing(
            divides="bucket"
        ),
        "that is the mean of nothing but this rank's own gradient: reduce it over the ranks": _reducing(
            way="nothing"
        ),
        "nothing was written into `own`: `own[...] += ...` does so; `own = own "
        "+ ...` names a new tensor": _reducing(writes=False),
        "`own` holds what earlier micro-batches have brought: add to it": _reducing(adds=False),
        "a gradient across a partition boundary belongs to two owners: cut it there": _reducing(cut="never"),
        "places count from the flat tensor's begin, and a slice from the "
        "gradient's: subtract `start`": _reducing(cut="absolute"),
        "begin with an empty collection of pieces for each owner: there are "
        "those of the owner before": _reducing(carries=True),
        "right, but in a message for each piece: join an owner's pieces with `torch.cat`, and "
        "send them at once": _reducing(joined=False),
        "right, but an all-reduce gives everybody what only the owner needs, "
        "and costs twice the bytes": _reducing(way="all"),
        "right, but each owner gets the whole bucket: send it its own pieces only": _too_much("bucket"),
        "right, but an owner gets its whole shard, with zeros: send it the bucket's pieces only": _too_much(
            "shard"
        ),
        "right, but the whole flat tensor travels, with zeros: send the bucket's pieces only": _too_much(
            "flat"
        ),
        "right, but in four bytes per gradient: send them in their own dtype": _reducing(fp32=True),
    },
    praise="a bucket is one message for each owner, however many gradients are in it",
)


# --- buckets that fill during the backward pass

RELEASE_HINTS = {
    "'NoneType' object has no attribute": "`.grad` was still None in your hook: register it with "
    "`register_post_accumulate_grad_hook`, "
    "and use the "
    "parameter that it is called with, not a loop's variable",
    "cannot access local variable": "an assignment in an inner function makes a new, local name: "
    "empty a bucket by `.clear()`, "
    "or declare `nonlocal`",
    "Boolean value of "
    "Tensor with more than one value": "look a parameter up in a dict, which compares by identity; `==`, "
    "`in` and `.index` of lists "
    "compare elements",
}


class _Seen:
    """Takes the buckets, and keeps what was in them, and for how many gradients of earlier ones there is
    still memory.

    It sees gradients as soon as they are made, so that one which is kept somewhere else is seen also where
    the bucket has a copy.
    """

    def __init__(self, parameters):
        self.places, self.gradients, self.alive, self.earlier, self.fresh = [], [], [], [], []
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(
                lambda made: self.fresh.append(StorageWeakRef(made.grad.untyped_storage()))
            )

    def living(self):
        gc.collect()
        return sum(not memory.expired() for memory in self.earlier)

    def reduce(self, bucket):
        if not isinstance(bucket, dict):
            raise TypeError(
                "`reduce` takes a bucket, a dict {where a gradient begins: the gradient}, and "
                f"was given a {type(bucket).__name__}"
            )
        if strange := [start for start in bucket if type(start) is not int]:
            raise TypeError(
                "a bucket's keys are places in the flat tensor, whole numbers, and one is a "
                f"{type(strange[0]).__name__}"
            )
        self.alive.append(self.living())
        self.places.append(
            ", ".join(
                f"at {start} of shape {tuple(gradient.shape)}" for start, gradient in sorted(bucket.items())
            )
            or "nothing"
        )
        self.gradients += [
            value for _, gradient in sorted(bucket.items()) for value in gradient.detach().flatten().tolist()
        ]
        self.earlier += self.fresh + [
            StorageWeakRef(gradient.untyped_storage()) for gradient in bucket.values()
        ]
        self.fresh = []


@contextmanager
def _new_objects_only():
    """Garbage is looked for among objects made from now on, of which there are few: all others would take
    nearly all the time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _tensors():
    gc.collect()
    return sum(
        type(one) is torch.Tensor and one.is_floating_point() and one.numel() > 0 for one in gc.get_objects()
    )


def _filled(function, seed):
    """Two backward passes with small, middling and large buckets: what each bucket held when it was reduced,
    and what was still alive then.

    The last layer has 15 elements, which fill a bucket of 15 exactly.
    """
    found = {}
    with _new_objects_only(), helped(RELEASE_HINTS):
        for size in (1, 15, 60 + seed % 20, 10**6):
            torch.manual_seed(seed)
            case = f", with buckets of {size:,} elements"
            found |= {
                f"{name}{case}": value
                for name, value in _with_buckets_of(size, function, 6 + seed % 3).items()
            }
    return found


def _with_buckets_of(size, function, width):
    model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 3))
    parameters, left = list(model.parameters()), []
    seen, before = _Seen(parameters), _tensors()
    flush = function(parameters, size, seen.reduce)
    if not callable(flush):
        raise TypeError(
            "release_by_bucket must return a function, which reduces what is left in the bucket, "
            f"not {flush!r}"
        )
    for _ in range(2):
        model(torch.randn(7, 5)).square().mean().backward()
        left.append(sum(parameter.grad is not None for parameter in parameters))
        flush()
    return {
        "gradients left on the parameters after each backward pass": left,
        "buckets that were reduced": len(seen.places),
        "what the buckets held": seen.places,
        "the gradients that were reduced": seen.gradients,
        "gradients of earlier buckets still alive when the next was reduced": seen.alive,
        "gradients still alive at the end": seen.living(),
        "tensors that are kept at the end": max(0, _tensors() - before),
    }


def _release(
    frees="none",
    empties="after",
    flushes="rest",
    order="parameters",
    when="full",
    flat=True,
    keeps="nothing",
    copies=False,
):
    """A way to fill buckets that makes the mistake that is named; without one it is right."""

    def release_by_bucket(parameters, bucket_size, reduce):
        bucket, starts, offset, kept, counted = {}, {}, 0, [], [0]
        for parameter in reversed(parameters) if order == "reversed" else parameters:
            starts[parameter] = offset
            offset += len(parameter) if order == "rows" else parameter.numel()

        def flush():
            full = dict(bucket)
            if empties == "before":
                bucket.clear()
                full = bucket
            if full or flushes == "always" or empties == "before":
                reduce(full)
            if empties == "after":
                bucket.clear()

        def ready(parameter):
            before = sum(gradient.numel() for gradient in bucket.values())
            filled = before + parameter.numel()
            counted[0] += parameter.numel()
            if when == "would overflow" and before and filled > bucket_size:
                flush()
            gradient = parameter.grad.flatten() if flat else parameter.grad
            bucket[starts[parameter]] = gradient.clone() if copies else gradient
            if keeps != "nothing":
                kept.append(parameter.grad if keeps == "gradients" else gradient.clone())
            if frees == "none":
                parameter.grad = None
            elif frees == "zero":
                parameter.grad.zero_()
            full = {
                "each": True,
                "full": filled >= bucket_size,
                "more": filled > bucket_size,
                "gradients": len(bucket) >= bucket_size,
            }
            full["ever"] = counted[0] >= bucket_size
            if full.get(when):
                flush()

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(ready)
        return flush if flushes != "never" else lambda: None

    return release_by_bucket


release_by_bucket = Build(
    "release_by_bucket",
    _filled,
    mistakes={
        "the gradients are still on the parameters: set `.grad` to None as soon "
        "as they are in the bucket": _release(frees="never"),
        "the gradients, or their copies, are still on the parameters: set `.grad` to None": _release(
            frees="never", copies=True
        ),
        "a gradient of zeros takes as much memory: set `.grad` to None": _release(frees="zero", copies=True),
        "`.grad.zero_()` releases nothing, and writes zeros into the bucket, which has the same "
        "memory: set `.grad` to None": _release(frees="zero"),
        "a bucket that was reduced must be emptied, or its gradients are sent again": _release(
            empties="never"
        ),
        "the bucket was empty when it was reduced: reduce first, then clear": _release(empties="before"),
        "the last bucket is never full: the function that you return must reduce it": _release(
            flushes="never"
        ),
        "where nothing is left in the bucket there is nothing to reduce": _release(flushes="always"),
        "each gradient was reduced alone: wait until the bucket holds "
        "`bucket_size` elements or more": _release(when="each"),
        "after the first full bucket each gradient was reduced alone: count from zero again when "
        "a bucket is emptied": _release(when="ever"),
        "a bucket is full as soon as it holds `bucket_size` elements, not only with more": _release(
            when="more"
        ),
        "put the gradient in first, and look afterwards whether the bucket is full": _release(
            when="would overflow"
        ),
        "`bucket_size` counts elements, not gradients": _release(when="gradients"),
        "gradients in a bucket have one dimension: `.flatten()`": _release(flat=False),
        "something else still refers to gradients that were reduced: keep them in the bucket only": _release(
            keeps="gradients"
        ),
        "the bucket has copies, and something still refers to the gradients themselves": _release(
            keeps="gradients", copies=True
        ),
        "copies of the gradients are kept beside the bucket": _release(keeps="copies"),
        "the buckets were reduced at the end only, when all gradients were there": _release(when="end"),
        "where a gradient begins is counted in the order of `parameters`": _release(order="reversed"),
        "a matrix has more elements than `len`, which counts its rows: use `.numel()`": _release(
            order="rows"
        ),
    },
    praise="no more than a bucket of gradients is there at a time, beside the shard that each rank keeps",
)


# --- a formula

micro_batch_size = Exercise(
    reference=lambda train_batch, accumulation, ranks: train_batch / (accumulation * ranks),
    cases=(
        {"train_batch": 16, "accumulation": 4, "ranks": 2},
        {"train_batch": 1024, "accumulation": 8, "ranks": 64},
    ),
    mistakes={
        "the ranks share the batch": lambda train_batch, accumulation, ranks: train_batch / accumulation,
        "that is a rank's share of a step, which comes in several "
        "micro-batches": lambda train_batch, accumulation, ranks: train_batch / ranks,
    },
    praise="a step's batch is counted over ranks and micro-batches, and one call of "
    "the engine gets one of them",
)
