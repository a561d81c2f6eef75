"""Answers of lesson 00, and the mistakes that people make there."""

from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

sum_of_ranks = Exercise(
    reference=lambda ranks: ranks * (ranks - 1) // 2,
    cases=({"ranks": 4}, {"ranks": 1}, {"ranks": 2}, {"ranks": 8}),
    mistakes={
        "ranks are counted from 0, so the last one is ranks - 1": lambda ranks: ranks * (ranks + 1) // 2,
        "that is the number of ranks, and each of them brings its own number": lambda ranks: ranks,
        "that is the last rank's number, and all of them are added": lambda ranks: ranks - 1,
    },
    praise="0 + 1 + ... + (ranks - 1)",
)
tokens_per_step = Exercise(
    reference=lambda micro_batch, length, accumulation, ranks: micro_batch * length * accumulation * ranks,
    cases=(
        {"micro_batch": 8, "length": 64, "accumulation": 1, "ranks": 2},
        {"micro_batch": 2, "length": 32, "accumulation": 4, "ranks": 4},
    ),
    mistakes={
        "how many micro-batches does a rank run before it steps?": lambda micro_batch, length, accumulation, ranks: micro_batch * length * ranks,
        "every rank reads its own sequences": lambda micro_batch, length, accumulation, ranks: micro_batch * length * accumulation,
        "a sequence holds `length` tokens": lambda micro_batch, length, accumulation, ranks: micro_batch * accumulation * ranks,
    },
    praise="a step sees every rank's micro-batches",
)


mean_of_squares = RankExercise(
    expected=lambda rank, ranks: sum((other + 1) ** 2 for other in range(ranks)) / ranks,
    mistakes={
        "that is its own value: nothing was communicated": lambda rank, ranks: (rank + 1) ** 2,
        "that is the sum; a mean is divided by the number of ranks": lambda rank, ranks: sum((other + 1) ** 2 for other in range(ranks)),
    },
    praise="all of them know the mean",
    ranks=2,
)
