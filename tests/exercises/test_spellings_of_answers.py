"""A learner may import a collective under any name: a right answer is accepted, and a wrong one is seen."""

import pytest
from torch.distributed import all_reduce as add_up
from helpers.course.exercises import data_parallelism, zero_1

pytestmark = pytest.mark.ranks


def averaging(answers, waits_at_once=False):
    """Lesson 04's message, which is sent with torch's function under another name."""

    def start(parameters):
        import torch.distributed as dist

        bucket = torch.cat([parameter.grad.flatten() for parameter in parameters])
        request = add_up(bucket, async_op=True)
        answer = request.get_future() if answers == "future" else request
        if waits_at_once:
            answer.wait()

        def finish():
            if not waits_at_once:
                answer.wait()
            parts = (bucket / dist.get_world_size()).split([each.numel() for each in parameters])
            for parameter, part in zip(parameters, parts):
                parameter.grad.copy_(part.view_as(parameter))

        return finish

    import torch

    return start


@pytest.mark.parametrize("answers", ["request", "future"])
def test_a_message_of_another_name_is_right(capsys, answers):
    data_parallelism.start.check(averaging(answers))
    assert capsys.readouterr().out.startswith("✓ correct")


def test_a_message_of_another_name_that_is_waited_for_at_once_is_not(capsys):
    data_parallelism.start.check(averaging("request", waits_at_once=True))
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and "wait inside `finish`" in said


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
