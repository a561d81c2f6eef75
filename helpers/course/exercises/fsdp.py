"""Answers of the appendix on FSDP2, and the mistakes that people make there."""

from collections.abc import Iterator

import torch
from torch.nn import functional as F
from helpers.course import models
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.in_ranks import helped
from helpers.tools.measure.traffic import OPERATIONS, Traffic

__all__ = ["gather_rows", "guess", "least_sharing", "reduce_rows", "rows_held", "wrap"]


def _shapes(seed, ranks):
    """Three parameters: a matrix whose rows divide by the ranks, a vector of which they do not, a matrix with
    fewer rows than ranks."""
    random = torch.Generator().manual_seed(seed)
    one, two, three = (int(torch.randint(2, 5, (), generator=random)) for _ in range(3))
    return [torch.Size(shape) for shape in ((one * ranks, 3), (two * ranks + 1,), (ranks - 1, three))]


def _full(seed, ranks, rank=0):
    """A tensor of each shape, alike on all ranks, or one's own."""
    random = torch.Generator().manual_seed(1000 * (seed % 10**6) + rank)
    return [torch.randn(shape, generator=random) for shape in _shapes(seed, ranks)]


def _padded(tensor, ranks):
    """With rows of zeros until the ranks divide their number."""
    return torch.cat([tensor, tensor.new_zeros(-len(tensor) % ranks, *tensor.shape[1:])])


def _checked(tensors, number, name):
    tensors = list(tensors) if isinstance(tensors, (list, tuple, Iterator)) else [None]
    if not all(isinstance(one, torch.Tensor) for one in tensors):
        raise TypeError(f"{name} must return a list of tensors, one for each parameter")
    if len(tensors) != number:
        raise ValueError(f"{name} must return {number} tensors, one for each parameter, not {len(tensors)}")
    return [one.clone() for one in tensors]


# --- one all-gather for a group


GATHER_WORDS = {
    "invalid tensor size": "`flat` needs room for what all ranks give: N times the elements of `mine`",
    "is invalid for input of size": "what was gathered has rows of zeros at the end of "
    "a parameter: cut them off",
    "same number of dimensions": "flatten() each shard before they are joined",
}
REDUCE_WORDS = {
    "outputShape[0] * worldSize": "what is sent is flat, N times as long as `mine`: pad each "
    "gradient to rows that N divides, "
    "and flatten() it all",
    "is invalid for input of size": "N does not divide its rows: pad each gradient with rows of zeros first",
}


def _gathered(function, seed):
    import deepspeed.comm as comm

    rank, ranks = comm.get_rank(), comm.get_world_size()
    shards = [_padded(tensor, ranks).chunk(ranks)[rank].clone() for tensor in _full(seed, ranks)]
    before = [shard.clone() for shard in shards]
    with helped(GATHER_WORDS), Traffic() as traffic:
        full = _checked(function(shards, _shapes(seed, ranks)), len(shards), "gather_rows")
    found = {f"parameter {index}": tensor for index, tensor in enumerate(full)}
    found["the shards are as before"] = all(one.equal(other) for one, other in zip(shards, before))
    return found | {"messages": sum(message.count for message in traffic.messages)}


def _gather(order="by rank", padding="cut", messages="one", deal="blocks"):
    """`gather_rows` with the mistake that is named; without one it is right."""

    def gather_rows(shards, shapes):
        import deepspeed.comm as comm

        rank, ranks = comm.get_rank(), comm.get_world_size()
        if messages == "none":
            return [
                shard.repeat(ranks, *[1] * (shard.dim() - 1))[: shape[0]]
                for shard, shape in zip(shards, shapes)
            ]
        mine, sizes = torch.cat([shard.flatten() for shard in shards]), [shard.numel() for shard in shards]
        flat = mine.new_empty(ranks * len(mine))
        if messages == "each":
            for shard, part in zip(shards, flat.split([ranks * size for size in sizes])):
                comm.all_gather_into_tensor(part, shard.flatten())
            parts = flat.split([ranks * size for size in sizes])
        else:
            comm.all_gather_into_tensor(flat, mine)
            rows = flat.view(ranks, -1).roll(-rank, 0) if order == "own first" else flat.view(ranks, -1)
            parts = rows.split(sizes, dim=1)
            if order == "by parameter":
                parts = flat.split([ranks * size for size in sizes])
            if order == "by full sizes":
                parts = flat[: sum(shape.numel() for shape in shapes)].split(
                    [shape.numel() for shape in shapes]
                )
        full = []
        for part, shape in zip(parts, shapes):
            part = part.reshape(-1, *shape[1:])
            if deal == "in turn":
                part = part.view(ranks, -1, *shape[1:]).transpose(0, 1).reshape(-1, *shape[1:])
            full.append(
                {"cut": part[: shape[0]], "kept": part, "at the start": part[len(part) - shape[0] :]}[padding]
            )
        return full

    return gather_rows


gather_rows = Build(
    "gather_rows",
    _gathered,
    mistakes={
        "the message holds one rank's part after the other, and each part holds a piece of every "
        "parameter: split by rank, then by "
        "parameter": _gather(order="by parameter"),
        "the message holds one rank's part after the other, with padding: split by rank, then by "
        "the sizes of the shards": _gather(order="by full sizes"),
        "rows of zeros are left at the end: cut each parameter to its own number of rows": _gather(
            padding="kept"
        ),
        "the padding is at the end of a parameter, so cut there": _gather(padding="at the start"),
        "all-gather puts the ranks' parts in the order of ranks, on every rank alike": _gather(
            order="own first"
        ),
        "rank 0 has the first rows, rank 1 those after them: they are not dealt in turn": _gather(
            deal="in turn"
        ),
        "nothing was gathered: those are this rank's rows, repeated": _gather(messages="none"),
        "right, but each parameter was a message of its own: join the shards into one flat "
        "tensor first": _gather(messages="each"),
    },
    praise="one message for a group, and each parameter comes back in its own shape",
)


# --- one reduce-scatter for a group


def _reduced(function, seed):
    import deepspeed.comm as comm

    rank, ranks = comm.get_rank(), comm.get_world_size()
    gradients = _full(seed, ranks, rank + 1)
    with helped(REDUCE_WORDS), Traffic() as traffic:
        rows = _checked(function(gradients), len(gradients), "reduce_rows")
    found = {f"rows of gradient {index}": tensor for index, tensor in enumerate(rows)}
    count = sum(ranks * one.numel() for one in rows)
    found["the gradients are sent once"] = sum(traffic.ideal.values()) <= 4 * count * (ranks - 1) / ranks
    return found | {"messages": sum(message.count for message in traffic.messages)}


def _reduce(divides="once", order="by rank", pads="end", reduces="scatter", messages="one"):
    """`reduce_rows` with the mistake that is named; without one it is right."""

    def reduce_rows(gradients):
        import deepspeed.comm as comm

        rank, ranks = comm.get_rank(), comm.get_world_size()
        rows = []
        for gradient in gradients:
            missing = -len(gradient) % ranks * gradient[0].numel()
            if pads == "elements":
                missing = -gradient.numel() % ranks
            rows.append(
                F.pad(gradient.flatten(), (missing, 0) if pads == "start" else (0, missing)).view(ranks, -1)
            )
        sizes = [one.shape[1] for one in rows]
        flat = (
            torch.cat([one.flatten() for one in rows])
            if order == "by parameter"
            else torch.cat(rows, dim=1).flatten()
        )
        mine = flat.chunk(ranks)[rank].clone()
        if messages == "each":
            parts = [one[rank].clone() for one in rows]
            for part, one in zip(parts, rows):
                comm.reduce_scatter_tensor(part, one.flatten())
        else:
            if reduces == "scatter":
                comm.reduce_scatter_tensor(mine, flat)
            elif reduces == "all":
                comm.all_reduce(flat)
                mine = flat.chunk(ranks)[rank]
            parts = mine.split(sizes)
        by = {"never": 1, "once": ranks, "twice": ranks**2, "by two": 2}[divides]
        if pads == "elements":
            return [part / by for part in parts]
        return [(part / by).view(-1, *gradient.shape[1:]) for part, gradient in zip(parts, gradients)]

    return reduce_rows


reduce_rows = Build(
    "reduce_rows",
    _reduced,
    mistakes={
        "that is the sum over the ranks; a mean is divided by their number": _reduce(divides="never"),
        "divide by the number of ranks, which is not always two": _reduce(divides="by two"),
        "rank r gets the r-th part of the flat tensor: that part must hold "
        "its rows of every gradient": _reduce(order="by parameter"),
        "these are this rank's own gradients: reduce-scatter the gradients of all ranks": _reduce(
            reduces="nothing"
        ),
        "these are this rank's own gradients, not divided either: reduce-scatter, then divide": _reduce(
            reduces="nothing", divides="never"
        ),
        "the rows of zeros belong to the end of each gradient": _reduce(pads="start"),
        "padded by elements, as ZeRO-3 cuts: FSDP2 cuts rows, so pad with rows, and give each "
        "part the shape of rows": _reduce(pads="elements"),
        "right, but an all-reduce sends twice the bytes: each rank needs only its own rows": _reduce(
            reduces="all"
        ),
        "right, but each gradient was a message of its own: join them into one flat tensor": _reduce(
            messages="each"
        ),
    },
    praise="one message for a group, and each rank has its own rows of the mean",
)


# --- wrapping a model


class _Wrapped:
    """What is seen while a wrapped GPT trains: parameters that are full on this rank, in elements, whenever a
    block begins to compute."""

    def __init__(self, model):
        self.model, self.while_computing = model, 0
        for block in model.blocks:
            block.attention.register_forward_pre_hook(self.look)

    def look(self, *call):
        self.while_computing = max(self.while_computing, self.full())

    def full(self):
        return sum(
            parameter.numel() for parameter in self.model.parameters() if not hasattr(parameter, "to_local")
        )


WORDS = {
    "overlapping meshes": "what is sharded once cannot be sharded again: call fully_shard "
    "for the blocks first, and "
    "for the model last",
    "shared with a parameter": "the token table is the head's matrix too: leave both to "
    "the last call, for the model",
    "containers that do not implement forward": "model.blocks is a list of modules: call "
    "fully_shard for each block in it",
    "FSDP needs a non-CPU accelerator": "that is FSDP1: use fully_shard",
}


def _tried(function, seed):
    """A GPT of two or three blocks through one step; with four ranks another one too, on a mesh of two
    replicas."""
    import deepspeed.comm as comm
    from torch.distributed.device_mesh import init_device_mesh

    ranks = comm.get_world_size()
    found = _counted(function, seed, init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",)))
    if ranks == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        found |= {
            f"{name}, on a mesh of 2 × 2": value for name, value in _counted(function, seed, mesh).items()
        }
    return found


def _counted(function, seed, mesh):
    import deepspeed.comm as comm

    size = models.GPTSize(vocabulary=16, context=8, width=8, layers=2 + seed % 2, heads=2)
    model = models.GPT(size)
    with helped(WORDS):
        called = function(model, mesh)
    if not isinstance(called, torch.nn.Module):
        raise TypeError(f"wrap must return the model that is called, not {type(called).__name__}")
    seen = _Wrapped(model)
    found = {
        "elements that are sharded": sum(
            one.numel() for one in model.parameters() if hasattr(one, "to_local")
        )
    }
    ids = torch.randint(size.vocabulary, (1, 4))
    with Traffic() as traffic:
        with helped(WORDS):
            loss = called(ids, ids)
        found["elements that are full while a block computes"] = seen.while_computing
        found["elements that are full between the passes"] = seen.full()
        loss.backward()
    found["elements that are full after the backward pass"] = seen.full()
    counts = {}
    for message in traffic.messages:
        kind, _ = OPERATIONS[message.operation]
        counts[kind] = counts.get(kind, 0) + message.count
    comm.barrier()
    return found | {
        f"messages of kind {kind}": counts.get(kind, 0)
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
    }


def _wrap(parts="blocks", root=True, on="the mesh", **keys):
    """`wrap` with the mistake that is named; without one it is right."""

    def wrap(model, mesh):
        import warnings

        from torch.distributed.fsdp import fully_shard

        warnings.filterwarnings(
            "ignore", message="FSDP2-wrapped module .* returned a view"
        )  # of a single linear layer

        chosen = {
            "blocks": list(model.blocks),
            "nothing": [],
            "linear layers": [
                one
                for one in model.modules()
                if isinstance(one, torch.nn.Linear) and one is not model.head.scores
            ],
            "all blocks at once": [list(model.blocks)],
            "the first block": [model.blocks[0]],
            "every module": [
                one for one in reversed(list(model.blocks.modules())) if list(one.parameters(recurse=False))
            ],
        }[parts]
        given = {"mesh": mesh} if on == "the mesh" else {}
        for part in chosen:
            fully_shard(part, **given, **keys)
        if root:
            fully_shard(
                model, **given, **({} if keys.get("reshard_after_forward") and root != "too" else keys)
            )
        return model

    return wrap


def _replicated(model, mesh):
    return torch.nn.parallel.DistributedDataParallel(model)


wrap = Build(
    "wrap",
    _tried,
    mistakes={
        "there is one group only: all parameters are gathered at once. Give each block to "
        "`fully_shard` first": _wrap(parts="nothing"),
        "what belongs to no block is not sharded: the model itself has to be given to "
        "`fully_shard` too, last": _wrap(root=False),
        "the blocks stay gathered after their forward pass: reshard_after_forward=False is "
        "ZeRO-2's memory in between": _wrap(reshard_after_forward=False),
        "the root's own parameters are released after the forward pass, only to be gathered "
        "again at once: leave reshard_after_forward at its "
        "default there": _wrap(reshard_after_forward=True, root="too"),
        "all blocks are one group, so they are gathered together: call `fully_shard` once for each": _wrap(
            parts="all blocks at once"
        ),
        "every linear layer is a group of its own: many small messages. Give `fully_shard` the blocks": _wrap(
            parts="linear layers"
        ),
        "every module is a group of its own: many small messages. Give `fully_shard` the blocks": _wrap(
            parts="every module"
        ),
        "only the first block is a group of its own: the root takes all others at once": _wrap(
            parts="the first block"
        ),
        "nothing is sharded: DDP replicates the parameters": _replicated,
        "without mesh=mesh all ranks share one copy, whatever the mesh says": _wrap(on="all ranks"),
    },
    praise="one group for each block, and one for what is left",
)


# --- formulas


def _rows(rows, ranks, rank):
    most = -(-rows // ranks)
    return max(0, min(most, rows - rank * most))


rows_held = Exercise(
    reference=_rows,
    cases=(
        {"rows": 10, "ranks": 4, "rank": 0},
        {"rows": 10, "ranks": 4, "rank": 3},
        {"rows": 9, "ranks": 8, "rank": 6},
        {"rows": 64, "ranks": 4, "rank": 2},
    ),
    mistakes={
        "the first ranks take as many as fit, so the remainder is "
        "missing at the end, not spread": lambda rows, ranks, rank: rows // ranks + (rank < rows % ranks),
        "so many there would be if they divided equally, rounded down; "
        "the last rank has the fewest": lambda rows, ranks, rank: rows // ranks,
        "so many every rank has room for; the last ones have "
        "fewer of their own, or none": lambda rows, ranks, rank: -(-rows // ranks),
        "a rank cannot have less than no row": lambda rows, ranks, rank: min(
            -(-rows // ranks), rows - rank * -(-rows // ranks)
        ),
    },
    praise="as torch.chunk cuts: full parts first, what is left in the last one, and none after it",
)
least_sharing = Exercise(
    reference=lambda parameters, memory, per_host: (
        -(-int(16 * parameters) // int(memory * per_host)) * per_host
    ),
    cases=(
        {"parameters": 7e9, "memory": 40e9, "per_host": 8},
        {"parameters": 70e9, "memory": 40e9, "per_host": 8},
        {"parameters": 13e9, "memory": 20e9, "per_host": 4},
    ),
    mistakes={
        "that is as few GPUs as could hold the states; "
        "whole hosts are asked for": lambda parameters, memory, per_host: (
            -(-int(16 * parameters) // int(memory))
        ),
        "that is the number of hosts; how many GPUs are these?": lambda parameters, memory, per_host: (
            -(-int(16 * parameters) // int(memory * per_host))
        ),
    },
    praise="the smallest group of hosts that holds the states: all-gathers stay inside it",
)
