"""Lesson 09's build: slips that end in an error of torch's or gloo's are answered with what leads to them."""

import pytest
from helpers.course.exercises import zero_3 as lesson_09

pytestmark = pytest.mark.ranks


def slipped(slip):
    """The backward pass of a sharded layer, with a slip; "by autograd.grad" is none."""

    def sharded_backward(sharded, x, y_gradient):
        import deepspeed.comm as comm
        import torch

        if slip != "not gathered":
            sharded.gather()
        if slip != "not detached":
            x = x.detach()
        x = x.requires_grad_(x.is_floating_point() or slip == "ids")
        with torch.set_grad_enabled(slip != "not recorded"):
            y = sharded(x) if slip == "the module" else sharded.layer(x)
        if slip == "released early":
            sharded.release()
        parameters, start = list(sharded.layer.parameters()), None if slip == "from ones" else y_gradient
        if slip == "by autograd.grad":
            inputs = [x] if x.requires_grad else []
            gradients = torch.autograd.grad(y, inputs + parameters, start)
            x_gradient, gradients = (gradients[0] if inputs else None), gradients[len(inputs) :]
        else:
            y.backward(start)
            x_gradient, gradients = x.grad, [parameter.grad for parameter in parameters]
        mine, flat = (
            torch.empty_like(sharded.shard),
            torch.cat([gradient.flatten() for gradient in gradients]),
        )
        if slip != "not padded":
            flat = torch.nn.functional.pad(flat, (0, comm.get_world_size() * len(mine) - len(flat)))
        sharded.release()
        for parameter in parameters:
            parameter.grad = None
        if slip == "all of it":
            return x_gradient, flat
        if slip == "each by itself":
            ranks, pieces = comm.get_world_size(), []
            for gradient in gradients:
                padded = torch.nn.functional.pad(gradient.flatten(), (0, -gradient.numel() % ranks))
                pieces.append(padded.new_empty(len(padded) // ranks))
                comm.reduce_scatter_tensor(pieces[-1], padded)
            return x_gradient, torch.cat(pieces) / ranks
        comm.reduce_scatter_tensor(mine, flat)
        if slip == "swapped":
            return (
                (mine / comm.get_world_size(), x_gradient)
                if x.is_floating_point()
                else (x_gradient, mine / comm.get_world_size())
            )
        if slip == "three":
            return x_gradient, mine / comm.get_world_size(), None
        return (
            mine
            if slip == "one"
            else (x_gradient, None if slip == "nothing" else mine / comm.get_world_size())
        )

    return sharded_backward


@pytest.mark.parametrize(
    ("slip", "words"),
    {
        "not gathered": "call sharded.gather() before you compute the layer",
        "not recorded": "unless under torch.enable_grad()",
        "the module": "compute sharded.layer(x)",
        "swapped": "is it the other way round?",
        "not detached": "detach() it, so that this backward pass ends at it",
        "ids": "token ids have no gradient",
        "released early": "release them afterwards",
        "from ones": "starts from y_gradient",
        "not padded": "padded to N times the elements of the shard",
        "one": "must return two gradients, that of x and that of the shard, not Tensor",
        "three": "must return two gradients, that of x and that of the shard, not 3 values",
        "each by itself": "the shard was cut from one flat tensor of all parameters",
        "nothing": "is the gradient of the shard, a tensor, not NoneType",
        "all of it": "reduce-scatter leaves each rank its own part",
    }.items(),
)
def test_a_slip_is_answered_with_what_to_do(slip, words):
    found = lesson_09.sharded_backward.verdict(slipped(slip))
    assert found.startswith("not yet: rank ") and words in found


def test_another_right_way_is_accepted():
    found = lesson_09.sharded_backward.verdict(slipped("by autograd.grad"))
    assert found.startswith("correct in 2 and 4 ranks")
