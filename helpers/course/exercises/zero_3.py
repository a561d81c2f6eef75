"""Answers of lesson 09: ZeRO-3, and the mistakes that people make there."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.seeing import helped
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import randn_of_rank
from helpers.course.exercises.trials import summed as summed
from helpers.tools.measure.traffic import Traffic

stubs = Stubs("zero_3")


class _Sharded:
    """A layer of which each rank keeps a shard, as the lesson makes it: `layer`, `shard`, `ranks`,
    `gather()`, `release()`, `flatten(tensors)`."""

    def __init__(self, layer):
        self.layer, self.ranks, self.gathers = layer, dist.get_world_size(), 0
        self.shapes = [parameter.shape for parameter in layer.parameters()]
        flat = self.flatten(layer.parameters()).detach()
        self.shard = nn.Parameter(flat.chunk(self.ranks)[dist.get_rank()].clone())
        self.before = self.shard.detach().clone()
        layer.register_forward_pre_hook(self.refuse_when_released)
        self.release()

    def refuse_when_released(self, *call):
        if self.elements() == 0:
            problem = "the layer's parameters are released"
            raise RuntimeError(f"{problem}: call sharded.gather() before you compute the layer")

    def __call__(self, *call):
        problem = "sharded(x) would be its whole forward pass, which gathers and comes back to your function"
        raise TypeError(f"compute sharded.layer(x): {problem}")

    def elements(self):
        return sum(parameter.numel() for parameter in self.layer.parameters())

    def gather(self, group=None):
        self.gathers += 1
        flat = torch.empty(len(self.shard) * self.ranks)
        dist.all_gather_into_tensor(flat, self.shard.detach(), group=group)
        for parameter, shape in zip(self.layer.parameters(), self.shapes):
            parameter.data, flat = flat[: shape.numel()].view(shape), flat[shape.numel() :]

    def flatten(self, tensors):
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        return F.pad(flat, (0, -len(flat) % self.ranks))

    def release(self):
        for parameter in self.layer.parameters():
            parameter.data = parameter.data.new_empty(0)


class _Operator(torch.autograd.Function):
    """Forward as the lesson has it; backward by the function that is tried, whose two gradients are noted."""

    @staticmethod
    def forward(context, x, shard, sharded, function, noted):
        context.save_for_backward(x)
        context.sharded, context.function, context.noted = sharded, function, noted
        sharded.gather(own_group())
        y = sharded.layer(x)
        sharded.release()
        return y

    @staticmethod
    def backward(context, y_gradient):
        (x,) = context.saved_tensors
        result = context.function(context.sharded, x, y_gradient)
        x_gradient, shard_gradient = _two(result, x.shape, context.sharded.shard.shape)
        x_copy = None if x_gradient is None else x_gradient.clone()
        context.noted.append((x_copy, shard_gradient.clone()))
        return x_gradient, shard_gradient, None, None, None


def _two(result, x_shape, shard_shape):
    """The two gradients that a function returned; raises an error in words for anything else."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        what = f"{len(result)} values" if isinstance(result, (tuple, list)) else type(result).__name__
        due = "two gradients, that of x and that of the shard"
        raise TypeError(f"sharded_backward must return {due}, not {what}")
    gradient = result[1]
    if not isinstance(gradient, torch.Tensor):
        due = "the gradient of the shard, a tensor"
        raise TypeError(f"the second that sharded_backward returns is {due}, not {type(gradient).__name__}")
    if gradient.shape != shard_shape:
        why = "since the shard was cut from one flat tensor of all parameters: put all their gradients into "
        why += "one, by sharded.flatten(...); then reduce-scatter leaves each rank its own part"
        if gradient.shape == x_shape:
            why = "and this one is that of x: is it the other way round?"
        shapes = f"has shape {tuple(gradient.shape)}; the shard's is {tuple(shard_shape)}"
        raise ValueError(f"the second that you return {shapes}, {why}")
    return result


HINTS = {
    "does not require grad": "inside of a backward pass autograd records nothing, unless under "
    "torch.enable_grad(): the layer, from x.detach().requires_grad_(), and whatever you compute from y",
    "a second time": "x belongs to the layers before: detach() it, so that this backward pass ends at it",
    "of floating point": "token ids have no gradient: ask x.is_floating_point() first",
    "outputShape[0] * worldSize": "the gradients of all parameters, in one flat tensor, padded to N times "
    "the elements of the shard: sharded.flatten(...) does it",
    "The size of tensor a (0)": "the gradients need the parameters: release them afterwards",
    "only for scalar outputs": "the layer's backward pass starts from y_gradient: y.backward(y_gradient)",
}


def _layers(seed, ranks):
    """A table of 4 rows, whose elements divide by the ranks, then two layers of two matrices each, of which
    the first's do not."""
    width = ranks * (2 + seed % 2) + 1
    inside = (width + 1 + torch.randint(4, (2,))).tolist()
    if (inside[0] * (2 * width + 1) + width) % ranks == 0:
        inside[0] += 1
    linear = [nn.Sequential(nn.Linear(width, size), nn.Tanh(), nn.Linear(size, width)) for size in inside]
    return [nn.Embedding(4, width), *linear]


def _passed_back(function, seed):
    """Two micro-batches through a table and two layers: gradients, what is left behind, what was sent."""
    values, layers = {}, [_Sharded(layer) for layer in _layers(seed, dist.get_world_size())]
    most = sum(2 * 4 * (sharded.ranks - 1) * len(sharded.shard) for sharded in layers)
    for micro_batch in (1, 2):
        x, noted = randn_of_rank(seed + micro_batch, 3, 4).argmax(1), []  # ids of three tokens
        for sharded in layers:
            x = _Operator.apply(x, sharded.shard, sharded, function, noted)
            sharded.gathers = 0
        with Traffic() as traffic, helped(HINTS):
            (x * randn_of_rank(seed - micro_batch, *x.shape)).sum().backward()
        for index, (x_gradient, shard_gradient) in zip((2, 1, 0), noted):  # as in the pass: the first error
            sharded, name = layers[index], f", layer {index}, micro-batch {micro_batch}"
            left = [parameter for parameter in sharded.layer.parameters() if parameter.grad is not None]
            values |= {
                f"the gradient of x{name}": x_gradient if index else None,  # token ids have none
                f"the gradient of the shard{name}": shard_gradient,
                f"what autograd has added up in shard.grad{name}": sharded.shard.grad.clone(),
                f"the shard itself is as before{name}": sharded.shard.detach().equal(sharded.before),
                f"elements that are still gathered{name}": sharded.elements(),
                f"gradients of whole parameters that are left{name}": len(left),
                f"how often it was gathered{name}": sharded.gathers,
            }
        name = f"the parameters and the gradients are sent once each, micro-batch {micro_batch}"
        values[name] = sum(traffic.ideal.values()) <= most
    return values


sharded_backward = stubs.build("sharded_backward", Returning(_passed_back), together=True)


zero_3_largest_model = stubs.formula("zero_3_largest_model", [(80e9, 8, 20e9), (24e9, 2, 8e9)])


stage_3_units = stubs.formula("stage_3_units", [(4, False), (4, True), (1, True)])
