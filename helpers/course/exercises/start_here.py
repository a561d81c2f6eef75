"""Answers of lesson 00, and the mistakes that people make there."""

import torch
from helpers.course.exercises.engine import Build, Exercise, RankExercise
from helpers.course.exercises.guesses import guess as guess


def _averaged(function, seed):
    """A number of each rank's own, and one that is the same everywhere."""
    import deepspeed.comm as comm

    values = {
        "a value per rank": seed % 97 + 2.5 * comm.get_rank() ** 2,
        "equal values": 1.5,
        "whole numbers": 3 + comm.get_rank(),
    }
    return {f"the mean, {name}": function(value) for name, value in values.items()}


def _summed(value):
    import deepspeed.comm as comm

    total = torch.tensor([float(value)])
    comm.all_reduce(total)
    return total.item()


def _on_rank_0_alone(value):
    """A reduce to rank 0, and the division on every rank."""
    import deepspeed.comm as comm

    mine, total = float(value), torch.tensor([float(value)])
    comm.reduce(total, 0)
    return (total.item() if comm.get_rank() == 0 else mine) / comm.get_world_size()


mean_over_ranks = Build(
    "mean_over_ranks",
    _averaged,
    mistakes={
        "that is the rank's own value: nothing was communicated": lambda value: value,
        "that is the sum; a mean is divided by the number of ranks": _summed,
        "that is right with two ranks alone: divide by the world size, whatever it is": lambda value: (
            _summed(value) / 2
        ),
        "only rank 0 has the mean; an all-reduce gives it to all": _on_rank_0_alone,
    },
    praise="every rank has the sum, so that each can divide it, and nobody need be told",
)

sum_of_ranks = Exercise(
    reference=lambda ranks: ranks * (ranks - 1) // 2,
    cases=({"ranks": 4}, {"ranks": 1}, {"ranks": 2}, {"ranks": 8}),
    mistakes={
        "ranks are counted from 0, so the last one is ranks - 1": lambda ranks: ranks * (ranks + 1) // 2,
        "that is the number of ranks, and each of them brings its own number": lambda ranks: ranks,
        "that is the last rank's number, and all of them are added": lambda ranks: ranks - 1,
    },
    praise="rank 0 brings nothing, and the last rank one less than there are ranks",
)
tokens_per_step = Exercise(
    reference=lambda micro_batch, length, accumulation, ranks: micro_batch * length * accumulation * ranks,
    cases=(
        {"micro_batch": 8, "length": 64, "accumulation": 1, "ranks": 2},
        {"micro_batch": 2, "length": 32, "accumulation": 4, "ranks": 4},
    ),
    mistakes={
        "how many micro-batches does a "
        "rank run before it steps?": lambda micro_batch, length, accumulation, ranks: (
            micro_batch * length * ranks
        ),
        "every rank reads its own sequences": lambda micro_batch, length, accumulation, ranks: (
            micro_batch * length * accumulation
        ),
        "a sequence holds `length` tokens": lambda micro_batch, length, accumulation, ranks: (
            micro_batch * accumulation * ranks
        ),
    },
    praise="an optimizer step waits for every micro-batch of every rank, so all of them count",
)


mean_of_squares = RankExercise(
    inputs=lambda ranks, random: [{"value": value} for value in random.sample(range(10, 100), ranks)],
    expected=lambda rank, given: sum(own["value"] ** 2 for own in given) / len(given),
    mistakes={
        "that is its own value: nothing was communicated": lambda rank, given: given[rank]["value"] ** 2,
        "that is the sum; a mean is divided by the number of ranks": lambda rank, given: sum(
            own["value"] ** 2 for own in given
        ),
        "that is the mean of the values: square them before they are summed": lambda rank, given: (
            sum(own["value"] for own in given) / len(given)
        ),
        "that is the square of the mean: square before the sum, not after it": lambda rank, given: (
            (sum(own["value"] for own in given) / len(given)) ** 2
        ),
    },
    praise="the sum comes out on every rank, so each of them can divide it and nobody need be told",
)
