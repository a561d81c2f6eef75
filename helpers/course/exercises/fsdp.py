"""Answers of the appendix on FSDP2, and the mistakes that people make there."""

import warnings
from collections.abc import Iterator

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from helpers.course import models
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.seeing import helped, returned
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import randn_of_rank
from helpers.tools.measure.traffic import OPERATIONS, Traffic

stubs = Stubs("fsdp")


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


gather_rows = stubs.build("gather_rows", Returning(_gathered), together=True)


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


reduce_rows = stubs.build("reduce_rows", Returning(_reduced), together=True)


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


wrap = stubs.build("wrap", Returning(_wrapped))


rows_held = stubs.formula("rows_held", [(10, 4, 0), (10, 4, 3), (9, 8, 6), (64, 4, 2)])


least_sharing = stubs.formula(
    "least_sharing",
    [
        (7e9, 40e9, 8),
        (70e9, 40e9, 8),
        (13e9, 20e9, 4),
    ],
)
