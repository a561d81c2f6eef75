"""Answers of the appendix on FSDP2, and the mistakes that people make there."""

import warnings
from collections.abc import Iterator

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from helpers.course import models
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped, own_group
from helpers.course.exercises.solutions import fsdp as solutions
from helpers.course.exercises.trials import build, formula, randn_of_rank, returned
from helpers.tools.measure.traffic import OPERATIONS, Traffic


def _shapes(seed, ranks):
    """A matrix whose rows divide by the ranks, a vector whose elements do not, and too few rows."""
    a, b, c = 2 + seed % 3, 2 + seed // 3 % 3, 2 + seed // 9 % 3
    return [torch.Size(shape) for shape in ((a * ranks, 3), (b * ranks + 1,), (ranks - 1, c))]


def _checked(tensors, number, name):
    due = f"{name} must return a list of tensors, one for each parameter"
    parts = returned(tensors, (list, tuple, Iterator), due)
    tensors = [returned(tensor, torch.Tensor, due) for tensor in parts]
    if len(tensors) != number:
        raise ValueError(f"{name} must return {number} tensors, one for each parameter, not {len(tensors)}")
    return tensors


def _sent(traffic, name, tensors, once, dtype):
    """What was sent, and what came of it: `once` is the bytes that a rank sends at least."""
    seen = {f"{name} {index}": tensor for index, tensor in enumerate(tensors)} | {
        "dtypes": [str(tensor.dtype) for tensor in tensors],
        "messages": sum(message.count for message in traffic.messages),
        "a rank sends no more bytes than it must": sum(traffic.ideal.values()) <= once,
    }
    return {f"{words}, {dtype}": value for words, value in seen.items()}


GATHER_WORDS = {
    "invalid tensor size": "`flat` needs room for what all ranks give: N times the elements of `mine`",
    "invalid for input": "what was gathered has rows of zeros at the end of a parameter: cut them off",
    "same number of dimensions": "flatten() each shard before they are joined",
}


def _gathered(function, seed):
    """In fp32 and float64; every rank cuts its shards from the same parameters."""
    rank, ranks, seen = dist.get_rank(), dist.get_world_size(), {}
    shapes = _shapes(seed, ranks)
    for dtype in (torch.float32, torch.float64):
        full = [torch.randn(shape, dtype=dtype) for shape in shapes]
        rows = [tensor.new_zeros(-len(tensor) % ranks, *tensor.shape[1:]) for tensor in full]  # to pad with
        shards = [torch.cat(both).chunk(ranks)[rank].clone() for both in zip(full, rows)]
        before = [shard.clone() for shard in shards]
        with helped(GATHER_WORDS), Traffic() as traffic:
            gathered = _checked(function(shards, list(shapes)), len(shards), "gather_rows")
        once = (ranks - 1) * sum(shard.nbytes for shard in shards)
        seen |= _sent(traffic, "parameter", gathered, once, dtype)
        seen[f"the shards are as before, {dtype}"] = all(map(torch.equal, shards, before))
    return seen


GATHER = "comm.all_gather_into_tensor(flat, mine)"
SPLIT = "flat.view(ranks, -1).split([shard.numel() for shard in shards], dim=1)"
EACH_GATHERED = """pieces = flat.split([ranks * shard.numel() for shard in shards])
    for piece, shard in zip(pieces, shards):
        comm.all_gather_into_tensor(piece, shard.flatten())"""
ALL_REDUCED = "flat.zero_().view(ranks, -1)[comm.get_rank()] = mine\n    comm.all_reduce(flat)"
gather_rows = build(solutions.gather_rows_solution, _gathered, together=True, mistakes={
    (SPLIT, "flat.split([ranks * shard.numel() for shard in shards])"): "the message holds one rank's part "
        "after the other, and each part holds a piece of every parameter: split by rank, then by parameter",
    (SPLIT, "flat[: sum(map(torch.Size.numel, shapes))].split([shape.numel() for shape in shapes])"):
        "the message holds one rank's part after the other, with padding: split by rank, then by the sizes "
        "of the shards",
    ("[: shape[0]]", ""): "rows of zeros are left at the end: cut each parameter to its own number of rows",
    ("[: shape[0]]", "[-shape[0] :]"): "the padding is at the end of a parameter, so cut there",
    ("view(ranks, -1)", "view(ranks, -1).roll(-comm.get_rank(), 0)"):
        "all-gather puts the ranks' parts in the order of ranks, on every rank alike",
    ("reshape(-1, *", "reshape(ranks, -1, *shape[1:]).transpose(0, 1).reshape(-1, *"):
        "rank 0 has the first rows, rank 1 those after them: they are not dealt in turn",
    (GATHER, "flat.view(ranks, -1)[:] = mine"): "nothing was gathered: those are this rank's rows, repeated",
    (f"{GATHER}\n    pieces = {SPLIT}", EACH_GATHERED):
        "right, but each parameter was a message of its own: join the shards into one flat tensor first",
    (GATHER, ALL_REDUCED):
        "right, but an all-reduce of zeros and of your part sends twice the bytes: all-gather the parts",
    ("mine.new_empty", "torch.empty", "flat, mine)", "flat, mine.float())"):
        "`torch.empty` is fp32, whatever the shards are: take `mine.new_empty`",
}, praise="one message for a group, and each parameter comes back in its own shape")  # fmt: skip


REDUCE_WORDS = {
    "outputShape[0] * worldSize": "what is sent is flat, N times as long as `mine`: pad each gradient to "
    "rows that N divides, and flatten() it all",
    "is invalid for input of size": "N does not divide its rows: pad each gradient with rows of zeros first",
}


def _reduced(function, seed):
    """In fp32 and float64; every rank has gradients of its own."""
    ranks, seen = dist.get_world_size(), {}
    for dtype in (torch.float32, torch.float64):
        shapes = enumerate(_shapes(seed, ranks))
        gradients = [randn_of_rank(seed + index, *shape).to(dtype) for index, shape in shapes]
        with helped(REDUCE_WORDS), Traffic() as traffic:
            rows = _checked(function(gradients), len(gradients), "reduce_rows")
        once = (ranks - 1) * sum(part.nbytes for part in rows)
        seen |= _sent(traffic, "rows of gradient", rows, once, dtype)
    return seen


MEAN, SCATTER = "(mine / ranks)", "comm.reduce_scatter_tensor(mine, flat)"
OWN_PART = "mine = flat.chunk(ranks)[comm.get_rank()]"
EACH_SCATTERED = """for part, piece in zip(mine.split([piece.shape[1] for piece in pieces]), pieces):
        comm.reduce_scatter_tensor(part, piece.flatten())"""
reduce_rows = build(solutions.reduce_rows_solution, _reduced, together=True, mistakes={
    (MEAN, "mine"): "that is the sum over the ranks; a mean is divided by their number",
    (MEAN, "(mine / 2)"): "divide by the number of ranks, which is not always two",
    ("torch.cat(pieces, dim=1).flatten()", "torch.cat([piece.flatten() for piece in pieces])"):
        "rank r gets the r-th part of the flat tensor: that part must hold its rows of every gradient",
    (SCATTER, OWN_PART): "these are this rank's own gradients: reduce-scatter the gradients of all ranks",
    (SCATTER, OWN_PART, MEAN, "mine"):
        "these are this rank's own gradients, not divided either: reduce-scatter, then divide",
    ("(0, missing)", "(missing, 0)"): "the rows of zeros belong to the end of each gradient",
    ("-len(gradient) % ranks * gradient[0].numel()", "-gradient.numel() % ranks",
        "part.view(-1, *gradient.shape[1:])", "part"): "padded by elements, as ZeRO-3 cuts: FSDP2 cuts rows, "
        "so pad with rows, and give each part the shape of rows",
    (SCATTER, f"comm.all_reduce(flat)\n    {OWN_PART}"):
        "right, but an all-reduce sends twice the bytes: each rank needs only its own rows",
    (SCATTER, EACH_SCATTERED):
        "right, but each gradient was a message of its own: join them into one flat tensor",
    ("flat.new_empty", "torch.empty", "mine, flat)", "mine, flat.float())"):
        "`torch.empty` is fp32, whatever the gradients are: take `flat.new_empty`",
}, praise="one message for a group, and each rank has its own rows of the mean")  # fmt: skip


WRAP_WORDS = {
    "overlapping meshes": "what is sharded once cannot be sharded again: call fully_shard for the blocks "
    "first, and for the model last",
    "shared with a parameter": "the token table is the head's matrix too: leave both to the last call, for "
    "the model",
    "not implement forward": "model.blocks is a list of modules: call fully_shard for each block in it",
    "FSDP needs a non-CPU accelerator": "that is FSDP1: use fully_shard",
}


def _wrapped(function, seed):
    """A GPT through one step; with four ranks another one too, on a mesh of two replicas."""
    ranks = dist.get_world_size()
    seen = _stepped(function, seed, init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",)))
    if ranks == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        replicas = _stepped(function, seed, mesh)
        seen |= {f"{name}, on a mesh of 2 × 2": value for name, value in replicas.items()}
    return seen


def _elements(model, sharded):
    """How many elements of the model's parameters are sharded, or whole on this rank."""
    parameters = [part for part in model.parameters() if hasattr(part, "to_local") == sharded]
    return sum(parameter.numel() for parameter in parameters)


def _stepped(function, seed, mesh):
    """What is sharded, sent and computed in a step; every rank has tokens of its own."""
    size = models.GPTSize(vocabulary=16, context=8, width=8, layers=2 + seed % 2, heads=2)
    model, whole = models.GPT(size), []  # elements that are whole when a block begins to compute
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # of a linear layer
    with helped(WRAP_WORDS):
        called = returned(function(model, mesh), torch.nn.Module, "wrap must return the model that is called")
    for block in model.blocks:
        block.attention.register_forward_pre_hook(lambda *call: whole.append(_elements(model, sharded=False)))
    seen = {"elements that are sharded": _elements(model, sharded=True)}
    ids = randn_of_rank(seed, 1, 4, size.vocabulary).argmax(-1)
    with Traffic() as traffic:
        with helped(WRAP_WORDS):
            loss = called(ids, ids)
        seen["elements that are full while a block computes"] = max(whole)
        seen["elements that are full between the passes"] = _elements(model, sharded=False)
        loss.backward()
    seen["elements that are full after the backward pass"] = _elements(model, sharded=False)
    dist.barrier(group=own_group())
    sent = [OPERATIONS[message.operation][0] for message in traffic.messages for _ in range(message.count)]
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        seen[f"messages of kind {kind}"] = sent.count(kind)
    seen |= {"the loss": loss, "the loss's dtype": str(loss.dtype)}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        seen[f"this rank's part of the gradient of {name.removeprefix('module.')}"] = local
    return seen


BLOCKS, A_BLOCK, ROOT = "in model.blocks:", "fully_shard(block, mesh=mesh)", "fully_shard(model, mesh=mesh)"
LINEAR = "[part for part in model.blocks.modules() if isinstance(part, torch.nn.Linear)]"
EVERY = "[part for part in [*model.blocks.modules()][::-1] if [*part.parameters(recurse=False)]]"
wrap = build(solutions.wrap_solution, _wrapped, mistakes={
    (A_BLOCK, "pass"): "there is one group only: all parameters are gathered at once. Give each block to "
        "`fully_shard` first",
    (ROOT, "model"): "what belongs to no block is not sharded: the model itself has to be given to "
        "`fully_shard` too, last",
    (A_BLOCK, "fully_shard(block, mesh=mesh, reshard_after_forward=False)", ROOT,
        "fully_shard(model, mesh=mesh, reshard_after_forward=False)"): "the blocks stay gathered after their "
        "forward pass: reshard_after_forward=False is ZeRO-2's memory in between",
    (ROOT, "fully_shard(model, mesh=mesh, reshard_after_forward=True)"):
        "the root's own parameters are released after the forward pass, only to be gathered again at once: "
        "leave reshard_after_forward at its default there",
    (BLOCKS, "in [list(model.blocks)]:"):
        "all blocks are one group, so they are gathered together: call `fully_shard` once for each",
    (BLOCKS, f"in {LINEAR}:"):
        "every linear layer is a group of its own: many small messages. Give `fully_shard` the blocks",
    (BLOCKS, f"in {EVERY}:"):
        "every module is a group of its own: many small messages. Give `fully_shard` the blocks",
    (BLOCKS, "in model.blocks[:1]:"):
        "only the first block is a group of its own: the root takes all others at once",
    (A_BLOCK, "pass", ROOT, "torch.nn.parallel.DistributedDataParallel(model)"):
        "nothing is sharded: DDP replicates the parameters",
    (A_BLOCK, "fully_shard(block)", ROOT, "fully_shard(model)"):
        "without mesh=mesh all ranks share one copy, whatever the mesh says",
}, praise="each block is a group, and so is what is left")  # fmt: skip


HELD = "max(0, min(most, rows - rank * most))"
rows_held = formula(solutions.rows_held_solution, [(10, 4, 0), (10, 4, 3), (9, 8, 6), (64, 4, 2)], mistakes={
    (HELD, "rows // ranks + (rank < rows % ranks)"):
        "the first ranks take as many as fit, so the remainder is missing at the end, not spread",
    (HELD, "rows // ranks"):
        "that is an equal share, rounded down; shares are rounded up, and the last rank has the fewest",
    (HELD, "most"): "that is what every rank has room for; the last ones have fewer of their own, or none",
    (HELD, "min(most, rows - rank * most)"): "a rank cannot have less than no row",
}, praise="torch.chunk cuts full parts first and puts the rest in the last one; ranks after it "
    "get nothing")  # fmt: skip


least_sharing = formula(solutions.least_sharing_solution, [
    (7e9, 40e9, 8), (70e9, 40e9, 8), (13e9, 20e9, 4),
], mistakes={
    ("(memory * per_host)", "memory", "int(hosts) * per_host", "int(hosts)"):
        "that is as few GPUs as could hold the states; whole hosts are asked for",
    ("int(hosts) * per_host", "int(hosts)"): "that is the number of hosts; how many GPUs are these?",
}, praise="the smallest group of hosts that holds the states: all-gathers stay inside it")  # fmt: skip
