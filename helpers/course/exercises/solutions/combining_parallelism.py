"""The course's own answers of lesson 15."""

import torch


def coordinates_solution(rank, axes):
    found = {}
    for name in reversed(axes):  # the innermost changes from each rank to the next
        rank, found[name] = divmod(rank, axes[name])
    return found


coordinates = coordinates_solution


def groups_along_solution(name, axes):
    from math import prod

    found = {}
    for rank in range(prod(axes.values())):
        place = coordinates(rank, axes)
        others = tuple(place[axis] for axis in axes if axis != name)  # who shares these is in one group
        found.setdefault(others, []).append(rank)
    return list(found.values())


def cable_bytes_solution(groups, sent, each, line):
    crossings = 0
    for group in groups:
        pairs = list(zip(group, group[1:]))  # of a line; a ring has one pair more, a pipeline sends both ways
        pairs += [(there, here) for here, there in pairs] if line else [(group[-1], group[0])]
        crossings += sum(here // each != there // each for here, there in pairs)
    return crossings * sent


def global_norm_solution(sharded, replicated, place, groups):
    import deepspeed.comm as comm

    counted = sharded + (replicated if place["model"] == 0 else [])  # all model ranks have these: once
    total = sum((gradient.square().sum() for gradient in counted), torch.zeros(()))
    for name in ("model", "pipe"):  # not over data: replicas have the same gradients
        comm.all_reduce(total, group=groups[name])
    return total.sqrt()
