"""Answers of lesson 00, and the mistakes that people make there."""

from helpers.course.exercises.editing import edits
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


def mean_over_ranks_solution(value):
    import deepspeed.comm as comm
    import torch
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator().current_device_name()
    total = torch.tensor([float(value)], device=device)
    comm.all_reduce(total)  # every rank gets the sum, so each can divide for itself
    return total.item() / comm.get_world_size()


_MEAN_OVER_RANKS_MISTAKES = {
    (lambda value: value): "that is the rank's own value: nothing was communicated",
    (" / comm.get_world_size()", ""): "that is the sum; a mean is divided by the number of ranks",
    ("comm.get_world_size()", "2"): "that is right with two ranks alone: divide by the world size, whatever "
    "it is",
    (
        "comm.all_reduce(total)",
        "comm.reduce(total, 0); total = total if comm.get_rank() == 0 else torch.tensor([float(value)])",
    ): "only rank 0 has the mean; an all-reduce gives it to all",
}
mean_over_ranks = Build(
    "mean_over_ranks",
    _averaged,
    mistakes=edits(mean_over_ranks_solution, _MEAN_OVER_RANKS_MISTAKES),
    praise="an all-reduce leaves the sum on every rank, so each divides it for itself",
    together=True,
)


def sum_of_ranks_solution(ranks):
    return ranks * (ranks - 1) // 2  # 0 + 1 + ... + (ranks - 1), since ranks count from 0


_SUM_OF_RANKS_MISTAKES = {
    ("ranks * (ranks - 1)", "ranks * (ranks + 1)"): "ranks are counted from 0, so the last one is ranks - 1",
    (lambda ranks: ranks): "that is the number of ranks, and each of them brings its own number",
    (lambda ranks: ranks - 1): "that is the last rank's number, and all of them are added",
}
sum_of_ranks = Exercise(
    reference=sum_of_ranks_solution,
    cases=({"ranks": 4}, {"ranks": 1}, {"ranks": 2}, {"ranks": 8}),
    mistakes=edits(sum_of_ranks_solution, _SUM_OF_RANKS_MISTAKES),
    praise="rank 0 brings nothing, and the last rank one less than there are ranks",
)


def tokens_per_step_solution(micro_batch, length, accumulation, ranks):
    return micro_batch * length * accumulation * ranks  # every rank reads micro-batches of its own


_TOKENS_PER_STEP_MISTAKES = {
    (" * accumulation", ""): "how many micro-batches does a rank run before it steps?",
    (" * ranks", ""): "every rank reads its own sequences",
    (" * length", ""): "a sequence holds `length` tokens",
}
tokens_per_step = Exercise(
    reference=tokens_per_step_solution,
    cases=(
        {"micro_batch": 8, "length": 64, "accumulation": 1, "ranks": 2},
        {"micro_batch": 2, "length": 32, "accumulation": 4, "ranks": 4},
    ),
    mistakes=edits(tokens_per_step_solution, _TOKENS_PER_STEP_MISTAKES),
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
