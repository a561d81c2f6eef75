"""Lesson 03's builds: slips that would end a process, wait for ever or raise an error without meaning get
words that help."""

import dataclasses

import pytest
from helpers.course.exercises import collectives as lesson_03

pytestmark = pytest.mark.ranks


def without_remainder(outgoing, incoming):
    import torch.distributed as dist

    rank = dist.get_rank()
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, outgoing, rank + 1), dist.P2POp(dist.irecv, incoming, rank - 1)]
    ):
        request.wait()


def requests_without_remainder(outgoing, incoming):
    import deepspeed.comm as comm

    request = comm.isend(outgoing, comm.get_rank() + 1)
    comm.recv(incoming, comm.get_rank() - 1)
    request.wait()


def half(slip):
    def ring_reduce_scatter(tensor, exchange):
        import torch
        import torch.distributed as dist

        rank, ranks = dist.get_rank(), dist.get_world_size()
        parts = tensor.chunk(ranks) if slip == "chunk" else tensor.tensor_split(ranks)
        for step in range(ranks - 1):
            sent, arriving = (rank - step - 1) % ranks, (rank - step - 2) % ranks
            incoming = torch.empty_like(parts[sent if slip == "the size of what is sent" else arriving])
            exchange(parts[sent], incoming)
            if slip == "tuple":
                parts[arriving] += incoming
            else:
                parts[arriving].add_(incoming)

    return ring_reduce_scatter


@pytest.mark.parametrize("answer", [without_remainder, requests_without_remainder])
def test_a_neighbour_beyond_the_last_rank_is_named(answer, capsys):
    lesson_03.exchange.check(answer)
    assert "there is no rank " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slip", "words"),
    {
        "chunk": "`tensor_split` never does",
        "tuple": "`parts[k].add_(incoming)`",
        "the size of what is sent": "it must be of the size and dtype of the part that arrives",
    }.items(),
)
def test_a_slip_in_the_ring_is_answered_with_what_to_do(slip, words, capsys):
    lesson_03.ring_reduce_scatter.check(half(slip))
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and words in said


def test_a_right_half_is_accepted(capsys):
    mine = half("none")
    assert lesson_03.ring_reduce_scatter.check(mine) is mine
    assert capsys.readouterr().out.startswith("✓ correct in 4 and 3 ranks")


def enters_a_collective_alone(outgoing, incoming):
    import deepspeed.comm as comm

    if comm.get_rank() == 0:
        comm.all_reduce(outgoing)


def leaves_a_collective_under_way(outgoing, incoming):
    import deepspeed.comm as comm

    if comm.get_rank() == 0:
        comm.all_reduce(outgoing, async_op=True)


def in_the_ring(enters):
    def ring_reduce_scatter(tensor, exchange):
        import deepspeed.comm as comm
        import torch

        if comm.get_rank() == 0:
            comm.all_reduce(tensor, async_op=enters == "async")
        exchange(tensor[:1], torch.empty(1))

    return ring_reduce_scatter


def test_a_rank_that_enters_a_collective_alone_is_named_with_its_own_line(capsys):
    build = dataclasses.replace(lesson_03.exchange, patience=6)
    build.check(enters_a_collective_alone)
    said = capsys.readouterr().out
    assert "rank 0 of 4 hung in all_reduce, which ranks 1, 2, 3 never entered" in said
    assert "comm.all_reduce(outgoing)" in said and "rank 1: had returned" in said and "helpers/" not in said


def test_a_collective_that_nobody_waits_for_meets_no_message_of_the_check(capsys):
    lesson_03.exchange.check(leaves_a_collective_under_way)
    said = capsys.readouterr().out
    assert "hung" not in said and said.startswith("✗ not yet: rank 0 of 4: `")
    lesson_03.ring_reduce_scatter.check(in_the_ring("async"))
    said = capsys.readouterr().out
    assert "hung" not in said and "rank 0 of 4: `the number of exchanges, " in said


def test_a_collective_beside_the_check_s_messages_is_named_too(capsys):
    build = dataclasses.replace(lesson_03.ring_reduce_scatter, patience=6)
    build.check(in_the_ring("waits"))
    said = capsys.readouterr().out
    assert "hung" in said and "comm.all_reduce(tensor, async_op" in said and "helpers/" not in said
