"""Messages and headers of gloo against what Linux counts at the sockets, to the byte."""

import pytest
from helpers import launch, theory
from helpers.tools.measure.traffic import Traffic


def collectives(elements):
    """{operation: `Traffic`} of one collective each on so many fp32 numbers per rank, after a first one that
    opens the connections."""
    import deepspeed
    import deepspeed.comm as comm
    import torch

    deepspeed.init_distributed()
    rank, ranks, found = comm.get_rank(), comm.get_world_size(), {}
    own, all_of_them = torch.ones(elements), torch.ones(elements * ranks)
    calls = {
        "all_reduce": lambda: comm.all_reduce(own),
        "all_gather_into_tensor": lambda: comm.all_gather_into_tensor(all_of_them, own),
        "reduce_scatter_tensor": lambda: comm.reduce_scatter_tensor(own, all_of_them),
        "broadcast": lambda: comm.broadcast(own, 0),
        "all_to_all_single": lambda: comm.all_to_all_single(torch.empty_like(all_of_them), all_of_them),
        "send": lambda: comm.send(own, 1) if rank == 0 else comm.recv(own, 0) if rank == 1 else None,
    }
    for name, call in calls.items():
        for _ in range(2):
            comm.barrier()
            with Traffic() as found[name]:
                call()
    return found


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("elements", [1, 5, 70_001, 1_500_000])
def test_all_ranks_together_send_what_the_formulas_say(ranks, elements):
    reports = launch(collectives, ranks=ranks, arguments={"elements": elements}, device="cpu")
    for name in reports[0]:
        sent = [message.over_gloo for found in reports for message in found[name].messages]
        expected = sum(carried + theory.GLOO_HEADER * messages for carried, messages in sent)
        assert sum(found[name].sent for found in reports) == pytest.approx(expected, abs=0.01), name


def test_a_few_numbers_are_cut_into_few_segments_and_a_large_tensor_into_many():
    assert [
        2 * theory.gloo_messages("all_reduce", 4 * elements, 2) for elements in (0, 1, 2, 3, 4, 5, 1000)
    ] == [0, 2, 4, 6, 8, 6, 8]
    assert [2 * theory.gloo_messages("all_reduce", megabytes << 20, 2) for megabytes in (1, 4, 5, 40)] == [
        8,
        8,
        12,
        80,
    ]


def test_alone_a_rank_sends_nothing():
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
        assert theory.gloo_messages(collective, 100, 1) == theory.gloo_wire_bytes(collective, 100, 1) == 0


@pytest.mark.parametrize("formula", [theory.gloo_messages, theory.gloo_wire_bytes])
def test_what_has_no_formula_is_refused(formula):
    with pytest.raises(ValueError, match="which rank is the root"):
        formula("reduce", 100, 2)
    with pytest.raises(ValueError, match="collective must be .all_reduce"):
        formula("gather", 100, 2)
