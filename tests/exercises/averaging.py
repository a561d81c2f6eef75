"""A small technique to build, the mean over ranks: its trial, solution and wrong answers.  Ranks import this
file, so it imports little."""


def trial(see, function):
    """The mean of random tensors."""
    import deepspeed.comm as comm
    import torch

    see("mean", function(torch.randn(2, 3) + see.rank, see.ranks))
    see("ranks", comm.get_world_size())
    see("seed", see.seed)


def mean_over_ranks_solution(tensor, ranks):
    import deepspeed.comm as comm

    tensor = tensor.clone()
    comm.all_reduce(tensor)
    print("not to be seen")
    return tensor / ranks


def in_place(tensor, ranks):
    import deepspeed.comm as comm

    comm.all_reduce(tensor)
    return tensor.div_(ranks)


def total(tensor, ranks):
    import deepspeed.comm as comm

    comm.all_reduce(tensor)
    return tensor


def half(tensor, ranks):
    return total(tensor, ranks) / 2


def stub(tensor, ranks):
    """The mean over all ranks.  tensor: (2, 3)."""
    ...


def make(**more):
    from helpers.course.exercises.builds import Build

    mistakes = {"a crash": ("/ ranks", "/ None"), "that is the sum": ("/ ranks", "")}
    return Build(mean_over_ranks_solution, trial, mistakes=mistakes, praise="summed, then divided", **more)
