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
    praise="the article fed one sentence where its configuration says two",
)
stage_2_saves = Exercise(
    reference=lambda ranks: 2 - 2 / ranks,
    cases=({"ranks": 2}, {"ranks": 4}, {"ranks": 64}),
    mistakes={
        "each rank keeps its own part of the gradients": lambda ranks: 2,
        "that is what is kept": lambda ranks: 2 / ranks,
        "that is the saving against no ZeRO at all": lambda ranks: 14 - 14 / ranks,
    },
    praise="two bytes at most, and only until the last backward pass",
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
    praise="with 16 micro-batches 17 units, where stage 1 sends 2",
)
own_gradients = RankExercise(
    expected=lambda rank, ranks: [1.5 if place < 3 else 15.0 for place in (2 * rank, 2 * rank + 1)],
    mistakes={
        "that is the sum; divide by the ranks": lambda rank, ranks: [6.0 if place < 3 else 60.0 for place in (2 * rank, 2 * rank + 1)],
        "that is its own gradient: nothing was reduced": lambda rank, ranks: [rank if place < 3 else 10 * rank for place in (2 * rank, 2 * rank + 1)],
        "the first tensor has three numbers, so rank 1 owns one of each": lambda rank, ranks: [1.5, 1.5] if rank < 2 else [15.0, 15.0],
    },
    praise="rank 1 owns a number of each tensor: it sits on the border",
)
