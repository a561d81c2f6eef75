"""Answers of lesson 08, and the mistakes that people make there."""

from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

micro_batch_size = Exercise(
    reference=lambda train_batch, accumulation, ranks: train_batch / (accumulation * ranks),
    cases=({"train_batch": 16, "accumulation": 4, "ranks": 2}, {"train_batch": 1024, "accumulation": 8, "ranks": 64}),
    mistakes={
        "the ranks share the batch": lambda train_batch, accumulation, ranks: train_batch / accumulation,
        "that is a rank's share of a step, which comes in several micro-batches": lambda train_batch, accumulation, ranks: train_batch / ranks,
    },
    praise="a step's batch is counted over ranks and micro-batches, one call gets one of them: the article fed half of what its configuration says",
)
stage_2_saves = Exercise(
    reference=lambda ranks: 2 - 2 / ranks,
    cases=({"ranks": 2}, {"ranks": 4}, {"ranks": 64}),
    mistakes={
        "each rank keeps its own part of the gradients": lambda ranks: 2,
        "that is what is kept": lambda ranks: 2 / ranks,
        "that is the saving against no ZeRO at all": lambda ranks: 14 - 14 / ranks,
    },
    praise="each rank keeps the gradients of its own part only, which are bf16 and gone after the step: two bytes is the most there is to save",
)
stage_2_units = Exercise(
    reference=lambda accumulation: accumulation + 1,
    cases=({"accumulation": 1}, {"accumulation": 4}, {"accumulation": 16}),
    mistakes={
        "parameters are gathered once per step": lambda accumulation: 2 * accumulation,
        "the updated parameters are sent too": lambda accumulation: accumulation,
        "that is stage 1; stage 2 cannot wait for the last micro-batch": lambda accumulation: 2,
        "that is with whole buckets all-reduced": lambda accumulation: 2 * accumulation + 1,
    },
    praise="nobody keeps all gradients, so they cannot wait for the last micro-batch; the parameters change once, and are sent once",
)


def _means(given, name):
    return [sum(column) / len(given) for column in zip(*(own[name] for own in given))]


def _own_part(rank, given, flat):
    size = len(flat) // len(given)
    return flat[rank * size : (rank + 1) * size]


own_gradients = RankExercise(
    inputs=lambda ranks, random: [{"first": random.sample(range(100), 3), "second": random.sample(range(100, 200), 5)} for _ in range(ranks)],
    expected=lambda rank, given: _own_part(rank, given, _means(given, "first") + _means(given, "second")),
    mistakes={
        "that is the sum; divide by the ranks": lambda rank, given: [
            len(given) * mean for mean in _own_part(rank, given, _means(given, "first") + _means(given, "second"))
        ],
        "that is its own gradient: nothing was reduced": lambda rank, given: _own_part(rank, given, given[rank]["first"] + given[rank]["second"]),
        "the first tensor has three elements, so the fourth place is the second's": lambda rank, given: _own_part(
            rank, given, _means(given, "first") + _means(given, "first")[-1:] + _means(given, "second")[1:]
        ),
    },
    praise="owners are counted in places of the flat tensor, so one rank owns elements of both: a partition boundary knows no tensors",
)
