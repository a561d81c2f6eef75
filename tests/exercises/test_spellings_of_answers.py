"""A learner may import a collective under any name: a right answer is accepted, and a wrong one is seen."""

import pytest
from torch.distributed import all_reduce as add_up
from helpers.course.exercises import data_parallelism, zero_1

pytestmark = pytest.mark.ranks


def in_buckets(answers, waits_at_once=False):
    """Lesson 04's reducer, which sends with torch's function under another name."""

    def average_in_buckets(model, bucket_elements):
        import torch.distributed as dist

        ready, under_way = [], []

        def send():
            bucket = torch.cat([parameter.grad.flatten() for parameter in ready])
            request = add_up(bucket, async_op=True)
            answer = request.get_future() if answers == "future" else request
            if waits_at_once:
                answer.wait()
            under_way.append((answer, bucket, list(ready)))
            ready.clear()

        def add(parameter):
            ready.append(parameter)
            if sum(each.numel() for each in ready) >= bucket_elements:
                send()

        def finish():
            if ready:
                send()
            while under_way:
                answer, bucket, parameters = under_way.pop(0)
                if not waits_at_once:
                    answer.wait()
                parts = (bucket / dist.get_world_size()).split([each.numel() for each in parameters])
                for parameter, part in zip(parameters, parts):
                    parameter.grad.copy_(part.view_as(parameter))

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(add)
        return finish

    import torch

    return average_in_buckets


@pytest.mark.parametrize("answers", ["request", "future"])
def test_buckets_of_another_name_are_right(capsys, answers):
    data_parallelism.average_in_buckets.check(in_buckets(answers))
    assert capsys.readouterr().out.startswith("✓ correct")


def test_buckets_of_another_name_that_are_waited_for_at_once_are_not(capsys):
    mine = in_buckets("request", waits_at_once=True)
    data_parallelism.average_in_buckets.check(mine)
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and "wait in the function that you return" in said


def all_reduced(parameters, flat):
    """The mean gradient by a sum that everyone gets: right, with twice the bytes."""
    import torch

    gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
    gradients = torch.nn.functional.pad(gradients, (0, len(flat) - len(gradients)))
    add_up(gradients)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return gradients.float().chunk(ranks)[rank] / ranks


def test_a_gradient_that_costs_twice_the_bytes_is_not_right(capsys):
    zero_1.reduce_to_owner.check(all_reduced)
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and "twice the bytes" in said, said
