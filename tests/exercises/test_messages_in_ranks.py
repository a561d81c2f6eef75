"""Lesson 03's builds: slips that would end a process, wait for ever or raise an error without meaning get
words that help."""

import pytest
from helpers.course.exercises import collectives as lesson_03
from tests.exercises.course import solutions

pytestmark = pytest.mark.ranks


def without_remainder(outgoing, incoming):
    import torch.distributed as dist

    rank = dist.get_rank()
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, outgoing, rank + 1), dist.P2POp(dist.irecv, incoming, rank - 1)]
    ):
        request.wait()


def ring(slip):
    def ring_all_reduce(tensor, exchange):
        import torch
        import torch.distributed as dist

        rank, ranks = dist.get_rank(), dist.get_world_size()
        parts = tensor.chunk(ranks) if slip == "chunk" else tensor.tensor_split(ranks)
        for step in range(ranks - 1):
            sent, arriving = (rank - step) % ranks, (rank - step - 1) % ranks
            incoming = torch.empty_like(parts[sent if slip == "the size of what is sent" else arriving])
            exchange(parts[sent], incoming)
            if slip == "tuple":
                parts[arriving] += incoming
            else:
                parts[arriving].add_(incoming)
        for step in range(ranks - 1):
            exchange(parts[(rank + 1 - step) % ranks], parts[(rank - step) % ranks])

    return ring_all_reduce


def test_a_neighbour_beyond_the_last_rank_is_named(capsys):
    lesson_03.exchange.check(without_remainder, solutions()["03-exchange"])
    assert "there is no rank " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slip", "words"),
    {
        "chunk": "`tensor_split` never does",
        "tuple": "`parts[k].add_(incoming)`",
        "the size of what is sent": "the size must be that of the part that arrives",
    }.items(),
)
def test_a_slip_in_the_ring_is_answered_with_what_to_do(slip, words, capsys):
    lesson_03.ring_all_reduce.check(ring(slip), solutions()["03-ring_all_reduce"])
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and words in said


def test_a_right_ring_is_accepted(capsys):
    mine = ring("none")
    assert lesson_03.ring_all_reduce.check(mine, solutions()["03-ring_all_reduce"]) is mine
    assert capsys.readouterr().out.startswith("✓ correct in 2 and 4 ranks")
