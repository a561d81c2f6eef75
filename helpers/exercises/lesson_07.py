"""Answers of lesson 07, and the mistakes that people make there."""

from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

momentum_zero_1 = Exercise(
    reference=lambda ranks: 4 + 8 / ranks,
    cases=({"ranks": 1}, {"ranks": 4}, {"ranks": 64}),
    mistakes={
        "that is Adam, which keeps two means": lambda ranks: 4 + 12 / ranks,
        "gradients are whole under ZeRO-1": lambda ranks: 2 + 10 / ranks,
        "the fp32 master weights are divided too": lambda ranks: 8 + 4 / ranks,
    },
    praise="master weights and one mean are divided, parameters and gradients are not",
)
zero_1_ranks_needed = Exercise(
    reference=lambda parameters, memory: 12 * parameters / (memory - 4 * parameters),
    cases=({"parameters": 7.5e9, "memory": 40e9}, {"parameters": 1e9, "memory": 16e9}),
    mistakes={
        "four bytes per parameter stay on every rank": lambda parameters, memory: 12 * parameters / memory,
        "not all sixteen are divided": lambda parameters, memory: 16 * parameters / memory,
        "the other way round": lambda parameters, memory: (memory - 4 * parameters) / (12 * parameters),
    },
    praise="and below four bytes per parameter no number of ranks is enough",
)
update_part = RankExercise(
    expected=lambda rank, ranks: [10 * (owner + 1) - (ranks - 1) / 2 for owner in range(ranks)],
    mistakes={
        "that is the sum of the gradients; divide by the ranks": lambda rank, ranks: [
            10 * (owner + 1) - ranks * (ranks - 1) / 2 for owner in range(ranks)
        ],
        "that is this rank's own gradient: sum them over the ranks first": lambda rank, ranks: [10 * (owner + 1) - rank for owner in range(ranks)],
        "only its own weight has moved: gather the others'": lambda rank, ranks: [
            10 * (owner + 1) - ((ranks - 1) / 2 if owner == rank else 0) for owner in range(ranks)
        ],
    },
    praise="each updated one weight, and all know four",
)
