"""A ladder to climb, ZeRO-1's step in two rungs and a last one that calls both, and a bug to plant in it."""

import torch
from helpers.course.exercises.solutions.zero_1 import flatten_solution
from helpers.course.exercises.builds import Build
from helpers.course.exercises.faults import Fault, shared_with
from helpers.course.exercises.trials import randn_of_rank


def reduce_to_owner_solution(parameters, flat):
    import deepspeed.comm as comm

    gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
    gradients = torch.nn.functional.pad(gradients, (0, len(flat) - len(gradients)))
    mine = torch.empty_like(gradients.chunk(comm.get_world_size())[0])
    comm.reduce_scatter_tensor(mine, gradients)
    return mine.float() / comm.get_world_size()


def step_and_gather_solution(flat, master, optimizer, gradient):
    import deepspeed.comm as comm

    master.grad = gradient
    optimizer.step()
    comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))
    master.grad = None


reduce_to_owner, step_and_gather = reduce_to_owner_solution, step_and_gather_solution


def zero_1_step_solution(parameters, flat, master, optimizer):
    gradient = reduce_to_owner(parameters, flat)
    step_and_gather(flat, master, optimizer, gradient)
    for parameter in parameters:
        parameter.grad = None


def undivided_solution(parameters, flat):
    import deepspeed.comm as comm

    return reduce_to_owner(parameters, flat) * comm.get_world_size()


def with_gradients(seed):
    """(parameters with a rank's own gradients, a flat tensor of a length that the ranks divide)."""
    ranks = torch.distributed.get_world_size()
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in (3, 2 * ranks - 1)]
    for parameter in parameters:
        parameter.grad = randn_of_rank(seed, len(parameter))
    elements = sum(len(parameter) for parameter in parameters)
    return parameters, torch.zeros(elements + -elements % ranks)


def reduced(see, function):
    mean = function(*with_gradients(see.seed))
    see("the shard of the mean", mean)
    see("its dtype", str(mean.dtype))


def ones_reduced(see, function):
    """Each rank comes with its number as every gradient."""
    parameters, flat = with_gradients(see.seed)
    for parameter in parameters:
        parameter.grad.fill_(1 + see.rank)
    see("the shard", function(parameters, flat))


def stepped(see, function):
    flat = torch.randn(6 * see.ranks)
    master = torch.nn.Parameter(flat.chunk(see.ranks)[see.rank] + 0.25)
    function(flat, master, torch.optim.SGD([master], lr=0.1), see.randn(6))
    see("the master", master.detach().clone())
    see("the flat tensor", flat)
    see("no gradient", master.grad is None)


def all_stepped(see, function):
    parameters, _ = with_gradients(see.seed)
    flat = flatten_solution(parameters, see.ranks)
    master = torch.nn.Parameter(flat.chunk(see.ranks)[see.rank].clone())
    function(parameters, flat, master, torch.optim.SGD([master], lr=0.1))
    see("the master", master.detach().clone())
    see("the flat tensor", flat)
    see("gradients that are left", sum(parameter.grad is not None for parameter in parameters))


def checks():
    """{name: check}, fresh ones."""
    reduce = Build(reduce_to_owner_solution, reduced, example=ones_reduced, together=True)
    step = Build(step_and_gather_solution, stepped, together=True)
    last = Build(zero_1_step_solution, all_stepped, rungs=(reduce, step), together=True)
    twice = {"divided twice": ("* comm.get_world_size()", "/ comm.get_world_size()")}
    praise = "Every owner steps with the sum."
    bug = Fault(undivided_solution, mistakes=twice, praise=praise, **shared_with(reduce))
    return {check.name: check for check in (reduce, step, last, bug)}
