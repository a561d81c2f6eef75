"""A link that sleeps, and layers that sleep instead of computing."""

import pytest
import torch
import torch.distributed as dist
from helpers import launch, replicated
from helpers.course.exercises import data_parallelism as lesson_04
from helpers.course.runs.slow import SlowLink, sleeping_layers

pytestmark = pytest.mark.ranks


def collectives_over_a_link():
    import time

    from helpers import training

    training.join()
    link, whole, part = SlowLink(0.01, 1e6), torch.ones(50_000), torch.ones(25_000)
    spans = {}
    for name, call in {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        "queued": lambda: [dist.all_reduce(part, async_op=True) for _ in range(2)][-1].wait(),
        "barrier": dist.barrier,
    }.items():
        dist.barrier()
        with link.joins():
            begin = time.perf_counter()
            call()
            spans[name] = time.perf_counter() - begin
    return spans


def test_a_collective_takes_as_long_as_its_bytes_over_the_link():
    for spans in launch(collectives_over_a_link, ranks=2, device="cpu"):
        assert 0.21 <= spans["all-reduce"] < 0.5  # 200 kB, and a start
        assert 0.11 <= spans["all-gather"] < 0.3  # half of them
        assert 0.22 <= spans["queued"] < 0.5  # one after the other
        assert spans["barrier"] < 0.1


def test_layers_sleep_in_the_pass_that_they_are_told():
    import time

    model = sleeping_layers(3, 4, forward=0.01, backward=0.03)
    begin = time.perf_counter()
    loss = model(torch.ones(1, 4)).sum()
    middle = time.perf_counter()
    loss.backward()
    assert 0.03 <= middle - begin < 0.2 and time.perf_counter() - middle >= 0.09
    assert [which for which, *_ in model[0].spans] == ["forward", "backward"]
    assert model[0].inside.weight.grad.abs().sum() > 0


def test_buckets_hide_behind_a_pass_and_one_message_at_the_end_does_not():
    found = replicated.over_a_slow_link(
        lesson_04.replicas.solution, {"at the end": 1, "in buckets": 4}, layers=4
    )
    assert found.seconds["in buckets"] < found.seconds["at the end"]
    assert found.seconds["at the end"] >= found.work + found.message
    for way, spans in found.spans.items():
        worked = max(end for kind, _, end in spans if kind == "backward")
        begun = [begin for kind, begin, _ in spans if kind == "all-reduce"]
        assert len(begun) == found.buckets[way]
        assert any(begin < worked for begin in begun) == (way == "in buckets")
