"""Answers of lesson 00, and the mistakes that people make there."""

from helpers.course.exercises.builds import RankExercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions import start_here as solutions
from helpers.course.exercises.trials import build, formula


def _averaged(function, seed):
    """A number of each rank's own, and one that is the same everywhere."""
    import deepspeed.comm as comm

    rank = comm.get_rank()
    values = {"a value per rank": seed % 97 + 2.5 * rank**2, "equal values": 1.5, "whole numbers": 3 + rank}
    return {f"the mean, {name}": function(value) for name, value in values.items()}


MEAN_OVER_RANKS = """
correct: an all-reduce leaves the sum on every rank, so each divides it for itself

that is the rank's own value: nothing was communicated
    comm.all_reduce(total) -> return value
that is the sum; a mean is divided by the number of ranks
    / comm.get_world_size() ->
that is right with two ranks alone: divide by the world size, whatever it is
    comm.get_world_size() -> 2
only rank 0 has the mean; an all-reduce gives it to all
    comm.all_reduce(total) -> comm.reduce(total, 0)
        total = total if comm.get_rank() == 0 else torch.tensor([float(value)])
"""
mean_over_ranks = build(solutions.mean_over_ranks_solution, _averaged, MEAN_OVER_RANKS, together=True)


SUM_OF_RANKS = """
correct: rank 0 adds nothing, and the last rank adds one less than the number of ranks

ranks are counted from 0, so the last one is ranks - 1
    ranks * (ranks - 1) -> ranks * (ranks + 1)
that is the number of ranks, and each of them brings its own number
    * (ranks - 1) // 2 ->
that is the last rank's number, and all of them are added
    ranks * (ranks - 1) // 2 -> ranks - 1
"""
sum_of_ranks = formula(solutions.sum_of_ranks_solution, [(4,), (1,), (2,), (8,)], SUM_OF_RANKS)


TOKENS_PER_STEP = """
correct: an optimizer step waits for every micro-batch of every rank, so all of them count

how many micro-batches does a rank run before it steps?
    * accumulation ->
every rank reads its own sequences
    * ranks ->
a sequence holds `length` tokens
    * length ->
"""
tokens_per_step = formula(solutions.tokens_per_step_solution, [(8, 64, 1, 2), (2, 32, 4, 4)], TOKENS_PER_STEP)


def _mean(numbers):
    return sum(numbers) / len(numbers)


mean_of_squares = RankExercise(
    lambda ranks, random: [{"value": value} for value in random.sample(range(10, 100), ranks)],
    lambda rank, given: _mean([own["value"] ** 2 for own in given]),
    mistakes={
        "that is its own value: nothing was communicated": lambda rank, given: given[rank]["value"] ** 2,
        "that is the sum; a mean is divided by the number of ranks": lambda rank, given: sum(
            own["value"] ** 2 for own in given
        ),
        "that is the mean of the values: square them before they are summed": lambda rank, given: _mean(
            [own["value"] for own in given]
        ),
        "that is the square of the mean: square before the sum, not after it": lambda rank, given: (
            _mean([own["value"] for own in given]) ** 2
        ),
    },
    solution=solutions.mean_of_squares_solution,
    praise="every rank gets the sum, so each divides it for itself",
)
