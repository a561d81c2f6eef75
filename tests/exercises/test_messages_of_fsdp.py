"""The appendix's builds: slips that end in an error of torch's or gloo's get words on what to do, and other
right ways are accepted."""

import pytest
import torch
from torch.torch_version import TorchVersion
from helpers import launch
from helpers.course.exercises import fsdp
from helpers.course.exercises.in_ranks import PATIENCE, Task, judge
from helpers.course.exercises.seeing import See
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
        return (
            piece.reshape(-1, *shape[1:])[: shape[0]] for piece, shape in zip(pieces, shapes)
        )  # a generator is as good as a list

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


SLIPS = [
    ("gather_rows", gathering("no room"), "N times the elements of `mine`"),
    ("gather_rows", gathering("not cut"), "rows of zeros at the end of a parameter: cut them off"),
    ("reduce_rows", reduce_without_padding, "what is sent is flat, N times as long as `mine`"),
    ("wrap", wrapping("root first"), "for the blocks first, and for the model last"),
    ("wrap", wrapping("the table alone"), "the token table is the head's matrix too"),
]
OTHER_WAYS = [("gather_rows", gathering("none")), ("wrap", wrapping("blocks first"))]


def tried(slips, others, seed):
    """In a rank: what each slip raises, and what a trial finds with the course's function and with another
    right one."""
    import deepspeed

    deepspeed.init_distributed()
    raised = []
    for trial, function in slips:
        try:
            trial(See(seed, PATIENCE, {}), function)
            raised.append("nothing")
        except Exception as error:
            raised.append(str(error))
    return raised, [judge(Task(*other, seed, together=True)) for other in others]


@pytest.fixture(scope="module")
def reports():
    """All in one job of two ranks: as checks of their own they would take twice the processor time."""
    course = {name: solution for name, solution in solutions().items() if name.startswith("fsdp-")}
    slips = [(getattr(fsdp, name).trial, function) for name, function, _ in SLIPS]
    others = [(getattr(fsdp, name).trial, function, course[f"fsdp-{name}"]) for name, function in OTHER_WAYS]
    return launch(tried, ranks=2, arguments={"slips": slips, "others": others, "seed": 5}, device="cpu")


@pytest.mark.parametrize("index", range(len(SLIPS)), ids=[words for _, _, words in SLIPS])
def test_a_slip_is_answered_with_what_to_do(reports, index):
    if "token table" in SLIPS[index][2] and TorchVersion(torch.__version__) < "2.12":
        pytest.skip("this torch shards a shared parameter without a word")
    assert all(SLIPS[index][2] in raised[index] for raised, _ in reports)


@pytest.mark.parametrize("index", range(len(OTHER_WAYS)), ids=[name for name, _ in OTHER_WAYS])
def test_another_right_way_is_accepted(reports, index):
    found = [ways[index] for _, ways in reports]
    assert not getattr(fsdp, OTHER_WAYS[index][0]).wrong(found) and found[0][0]
