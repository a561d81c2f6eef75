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
    praise="only what the optimizer step alone reads is partitioned; both passes need all parameters, and make all gradients",
)
zero_1_ranks_needed = Exercise(
    reference=lambda parameters, memory: 12 * parameters / (memory - 4 * parameters),
    cases=({"parameters": 7.5e9, "memory": 40e9}, {"parameters": 1e9, "memory": 16e9}),
    mistakes={
        "four bytes per parameter stay on every rank": lambda parameters, memory: 12 * parameters / memory,
        "not all sixteen are divided": lambda parameters, memory: 16 * parameters / memory,
        "the other way round": lambda parameters, memory: (memory - 4 * parameters) / (12 * parameters),
    },
    praise="what is replicated comes off each rank's memory first, and if nothing is left no number of ranks is enough",
)


def _update_inputs(ranks, random):
    weights = random.sample(range(100, 1000, 10), ranks)
    return [{"weights": weights, "gradient": [random.randint(1, 99) for _ in range(ranks)]} for _ in range(ranks)]


def _summed(given):
    return [sum(column) for column in zip(*(own["gradient"] for own in given))]


update_part = RankExercise(
    inputs=_update_inputs,
    expected=lambda rank, given: [weight - total / len(given) for weight, total in zip(given[rank]["weights"], _summed(given))],
    mistakes={
        "that is the sum of the gradients; divide by the ranks": lambda rank, given: [
            weight - total for weight, total in zip(given[rank]["weights"], _summed(given))
        ],
        "that is this rank's own gradient: sum them over the ranks first": lambda rank, given: [
            weight - own for weight, own in zip(given[rank]["weights"], given[rank]["gradient"])
        ],
        "only its own weight has moved: gather the others'": lambda rank, given: [
            weight - (total / len(given) if owner == rank else 0) for owner, (weight, total) in enumerate(zip(given[rank]["weights"], _summed(given)))
        ],
    },
    praise="a rank needs the mean gradient of its own weight only, and after the update everybody's weights",
)
