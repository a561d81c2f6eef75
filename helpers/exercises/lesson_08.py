"""Answers of lesson 08: the bucketed reducer of ZeRO-2, and the mistakes that people make there."""

import gc

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from helpers.exercises.engine import Build, Exercise
from helpers.exercises.guesses import guess
from helpers.measure.traffic import Traffic

__all__ = ["guess", "micro_batch_size", "reduce_bucket", "release_by_bucket"]


# ------------------------------------------------------------------------------------------------------ a bucket, to its owners


def _buckets(seed, ranks):
    """{where a gradient begins: its elements} of three buckets, in the order of a backward pass, and the elements of a shard.

    The first touches all owners, the second the first rank's shard only, the third the same places as the first: a further micro-batch.
    """
    shard = 12 + seed % 5
    first = {shard - 3: 2, shard - 1: 3, shard + 2: (ranks - 1) * shard - 4}  # the second of them lies across a partition boundary
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
            every = [{start: (torch.randint(-8, 9, (count,)) / 8).to(dtype) for start, count in places.items()} for _ in range(ranks)]
            elements = sum(places.values())
            owners = {place // shard for start, count in places.items() for place in range(start, start + count)}
            with Traffic() as traffic:
                function(every[rank], own)
            when = f", {str(dtype).removeprefix('torch.')}, bucket {number}"
            found[f"this rank's shard{when}"] = own.clone()
            found[f"there is at most one message for each owner{when}"] = sum(one.count for one in traffic.messages) <= len(owners)
            needed = elements * own.element_size() * (ranks - 1) / ranks
            found[f"bytes sent, as multiples of what the owners need{when}"] = max(1.0, round(sum(traffic.ideal.values()) / needed, 1))
    return found


def _reducing(divides="all", adds=True, joined=True, cut=True, way="reduce", fp32=False, writes=True):
    """A way to reduce a bucket that makes the mistake that is named; without one it is right."""

    def reduce_bucket(bucket, own):
        import deepspeed.comm as comm

        rank, ranks, shard = comm.get_rank(), comm.get_world_size(), len(own)
        for owner in range(ranks):
            pieces = {}
            for start, gradient in bucket.items():
                begin, end = max(start, owner * shard), min(start + len(gradient), (owner + 1) * shard)
                if not cut and start // shard != owner:
                    continue
                if begin < end:
                    pieces[begin] = gradient[begin - start : end - start].clone()
            if not pieces:
                continue
            messages = [torch.cat(list(pieces.values()))] if joined else list(pieces.values())
            messages = [message.float() for message in messages] if fp32 else messages
            for message in messages:
                if way == "reduce":
                    comm.reduce(message, dst=owner)
                elif way == "all":
                    comm.all_reduce(message)
            if owner == rank and writes:
                total = torch.cat(messages).to(own.dtype) / {"all": ranks, "by two": 2, "never": 1}[divides]
                for begin, part in zip(pieces, total.split([len(piece) for piece in pieces.values()])):
                    place = own[begin - rank * shard :][: len(part)]
                    place.copy_(place + part if adds else part)

    return reduce_bucket


def _too_much(what):
    """Sends each owner the whole bucket, or the whole of its shard, with zeros where the bucket has nothing."""

    def reduce_bucket(bucket, own):
        import deepspeed.comm as comm

        rank, ranks, shard = comm.get_rank(), comm.get_world_size(), len(own)
        places = torch.cat([torch.arange(start, start + len(gradient)) for start, gradient in bucket.items()])
        values = torch.cat(list(bucket.values()))
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
        "that is the sum over the ranks; a mean is divided by their number": _reducing(divides="never"),
        "divide by the number of ranks, which is not always two": _reducing(divides="by two"),
        "that is the mean of nothing but this rank's own gradient: reduce it over the ranks": _reducing(way="nothing"),
        "nothing was written into `own`: `own[...] += ...` does so; `own = own + ...` names a new tensor": _reducing(writes=False),
        "`own` holds what earlier micro-batches have brought: add to it": _reducing(adds=False),
        "a gradient across a partition boundary belongs to two owners: cut it there": _reducing(cut=False),
        "right, but in a message for each piece: join an owner's pieces with `torch.cat`, and send them at once": _reducing(joined=False),
        "right, but an all-reduce gives everybody what only the owner needs, and costs twice the bytes": _reducing(way="all"),
        "right, but each owner gets the whole bucket: send it its own pieces only": _too_much("bucket"),
        "right, but an owner gets its whole shard, with zeros: send it the bucket's pieces only": _too_much("shard"),
        "right, but in four bytes per gradient: send them in their own dtype": _reducing(fp32=True),
    },
    praise="a bucket is one message for each owner, however many gradients are in it",
)


# -------------------------------------------------------------------------------------- buckets that fill during the backward pass


class _Seen:
    """Takes the buckets, and keeps what was in them and for how many gradients of earlier ones there was still memory."""

    def __init__(self):
        self.places, self.gradients, self.alive, self.handed = [], [torch.zeros(0)], [], []

    def living(self):
        gc.collect()
        return sum(not memory.expired() for memory in self.handed)

    def reduce(self, bucket):
        self.alive.append(self.living())
        self.places.append(sorted([start, list(gradient.shape)] for start, gradient in bucket.items()))
        self.gradients.extend(gradient.detach().flatten().clone() for _, gradient in sorted(bucket.items()))
        self.handed.extend(StorageWeakRef(gradient.untyped_storage()) for gradient in bucket.values())


def _filled(function, seed):
    """Two backward passes with small, middling and large buckets: what each bucket held when it was reduced, and what was still alive then.

    The last layer has 15 elements, which fill a bucket of 15 exactly.
    """
    found = {}
    for size in (1, 15, 60 + seed % 20, 10**6):
        torch.manual_seed(seed)
        width, seen, left = 6 + seed % 3, _Seen(), []
        model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 3))
        parameters = list(model.parameters())
        flush = function(parameters, size, seen.reduce)
        if not callable(flush):
            raise TypeError(f"release_by_bucket must return a function, which reduces what is left in the bucket, not {flush!r}")
        for _ in range(2):
            model(torch.randn(7, 5)).square().mean().backward()
            left.append(sum(parameter.grad is not None for parameter in parameters))
            flush()
        case = f", buckets of {size} elements"
        found[f"gradients left on the parameters after each backward pass{case}"] = left
        found[f"where the gradients of each bucket begin, and their shapes{case}"] = str(seen.places)
        found[f"the gradients that were reduced{case}"] = torch.cat(seen.gradients)
        found[f"gradients of earlier buckets still alive when the next was reduced{case}"] = seen.alive
        found[f"gradients still alive at the end{case}"] = seen.living()
    return found


def _release(frees=True, empties=True, flushes="rest", order="parameters", when="full", flat=True, keeps=False):
    """A way to fill buckets that makes the mistake that is named; without one it is right."""

    def release_by_bucket(parameters, bucket_size, reduce):
        bucket, starts, offset, kept = {}, {}, 0, []
        for parameter in parameters if order == "parameters" else reversed(parameters):
            starts[parameter] = offset
            offset += parameter.numel()

        def flush():
            if bucket or flushes == "always":
                reduce(dict(bucket))
            if empties:
                bucket.clear()

        def ready(parameter):
            before = sum(gradient.numel() for gradient in bucket.values())
            filled = before + parameter.numel()
            if when == "would overflow" and before and filled > bucket_size:
                flush()
            bucket[starts[parameter]] = parameter.grad.flatten() if flat else parameter.grad
            if keeps:
                kept.append(parameter.grad)
            if frees:
                parameter.grad = None
            full = {"each": True, "full": filled >= bucket_size, "more": filled > bucket_size, "gradients": len(bucket) >= bucket_size}
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
        "the gradients are still on the parameters: set `.grad` to None as soon as they are in the bucket": _release(frees=False),
        "a bucket that was reduced must be emptied, or its gradients are sent again": _release(empties=False),
        "the last bucket is never full: the function that you return must reduce it": _release(flushes="never"),
        "where nothing is left in the bucket there is nothing to reduce": _release(flushes="always"),
        "each gradient was reduced alone: wait until the bucket holds `bucket_size` elements or more": _release(when="each"),
        "a bucket is full as soon as it holds `bucket_size` elements, not only with more": _release(when="more"),
        "put the gradient in first, and look afterwards whether the bucket is full": _release(when="would overflow"),
        "`bucket_size` counts elements, not gradients": _release(when="gradients"),
        "gradients in a bucket have one dimension: `.flatten()`": _release(flat=False),
        "something else still refers to gradients that were reduced: keep them in the bucket only": _release(keeps=True),
        "the buckets were reduced at the end only, when all gradients were there": _release(when="end"),
        "where a gradient begins is counted in the order of `parameters`": _release(order="reversed"),
    },
    praise="no more than a bucket of gradients is there at a time, beside the shard that each rank keeps",
)


# ---------------------------------------------------------------------------------------------------------------- a formula

micro_batch_size = Exercise(
    reference=lambda train_batch, accumulation, ranks: train_batch / (accumulation * ranks),
    cases=({"train_batch": 16, "accumulation": 4, "ranks": 2}, {"train_batch": 1024, "accumulation": 8, "ranks": 64}),
    mistakes={
        "the ranks share the batch": lambda train_batch, accumulation, ranks: train_batch / accumulation,
        "that is a rank's share of a step, which comes in several micro-batches": lambda train_batch, accumulation, ranks: train_batch / ranks,
    },
    praise="a step's batch is counted over ranks and micro-batches, and one call of the engine gets one of them",
)
