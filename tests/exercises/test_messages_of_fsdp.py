"""The appendix's builds: slips that end in an error of torch's or gloo's get words on what to do, and other right ways are accepted."""

import pytest
import torch
from helpers.exercises import lesson_fsdp
from tests.exercises.course import solutions

pytestmark = pytest.mark.ranks


def gathering(slip):
    def gather_rows(shards, shapes):
        import deepspeed.comm as comm

        ranks = comm.get_world_size()
        mine = torch.cat([shard.flatten() for shard in shards])
        flat = mine.new_empty((1 if slip == "no room" else ranks) * len(mine))
        comm.all_gather_into_tensor(flat, mine)
        pieces = flat.view(ranks, -1).split([shard.numel() for shard in shards], dim=1)
        if slip == "not cut":
            return [piece.reshape(shape) for piece, shape in zip(pieces, shapes)]
        return (piece.reshape(-1, *shape[1:])[: shape[0]] for piece, shape in zip(pieces, shapes))  # a generator is as good as a list

    return gather_rows


def reduce_without_padding(gradients):
    import deepspeed.comm as comm

    flat = torch.cat([gradient.flatten() for gradient in gradients])
    mine = flat.new_empty(len(flat) // comm.get_world_size() + 1)
    comm.reduce_scatter_tensor(mine, flat)
    return [mine]


def wrapping(slip):
    def wrap(model, mesh):
        from torch.distributed.fsdp import fully_shard

        for module in {
            "root first": [model, *model.blocks],
            "the table alone": [model.embedding, model.head, model],
            "blocks first": model.blocks,
        }[slip]:
            fully_shard(module, mesh=mesh)
        return fully_shard(model, mesh=mesh) if slip == "blocks first" else model

    return wrap


@pytest.mark.parametrize(
    ("name", "mine", "words"),
    [
        ("gather_rows", gathering("no room"), "N times the elements of `mine`"),
        ("gather_rows", gathering("not cut"), "rows of zeros at the end of a parameter: cut them off"),
        ("reduce_rows", reduce_without_padding, "what is sent is flat, N times as long as `mine`"),
        ("wrap", wrapping("root first"), "for the blocks first, and for the model last"),
        ("wrap", wrapping("the table alone"), "the token table is the head's matrix too"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_slip_is_answered_with_what_to_do(name, mine, words):
    found = getattr(lesson_fsdp, name).verdict(mine, solutions()[f"fsdp-{name}"])
    assert found.startswith("not yet: rank ") and words in found


@pytest.mark.parametrize(("name", "mine"), [("gather_rows", gathering("none")), ("wrap", wrapping("blocks first"))])
def test_another_right_way_is_accepted(name, mine):
    assert getattr(lesson_fsdp, name).verdict(mine, solutions()[f"fsdp-{name}"]).startswith("correct in 2 and 4 ranks")
