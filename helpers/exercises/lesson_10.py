"""Answers of lesson 10, and the mistakes that people make there."""

from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

largest_built_in_parts = Exercise(
    reference=lambda memory, ranks, largest: (memory / 8 - 6 * largest) * ranks / 2,
    cases=({"memory": 1e12, "ranks": 64, "largest": 6e8}, {"memory": 2e12, "ranks": 1024, "largest": 12e9}),
    mistakes={
        "every rank of the host has its own": lambda memory, ranks, largest: (memory - 6 * largest) * ranks / 2,
        "parts are of the model in bf16": lambda memory, ranks, largest: (memory / 8 - 6 * largest) * ranks / 4,
        "a matrix is made in fp32 and cast: six bytes for a moment": lambda memory, ranks, largest: (memory / 8 - 2 * largest) * ranks / 2,
        "the matrix is beside the parts": lambda memory, ranks, largest: memory / 8 * ranks / 2,
        "the model is divided among all ranks, not only this host's": lambda memory, ranks, largest: (memory / 8 - 6 * largest) * 8 / 2,
    },
    praise="eight hosts of 1 TB build almost four trillion",
)
checkpoint_bytes = Exercise(
    reference=lambda parameters, stage: parameters * (12 if stage == 3 else 14),
    cases=({"parameters": 7e9, "stage": 1}, {"parameters": 7e9, "stage": 2}, {"parameters": 7e9, "stage": 3}),
    mistakes={
        "gradients are not saved": lambda parameters, stage: 16 * parameters,
        "stage 3 saves no bf16 weights: they are the master weights, rounded": lambda parameters, stage: 14 * parameters,
        "stages 1 and 2 save the whole bf16 weights too": lambda parameters, stage: 12 * parameters,
        "that is Adam without the master weights": lambda parameters, stage: parameters * (8 if stage == 3 else 10),
    },
    praise="however many ranks wrote it",
)
change_a_weight = RankExercise(
    expected=lambda rank, ranks: [2.0 * rank, 2.0 * rank + 1],
    mistakes={
        "that is the whole weight: your part is in `ds_tensor`": lambda rank, ranks: [float(number) for number in range(8)],
        "every rank's part begins where the one before ends": lambda rank, ranks: [0.0, 1.0],
    },
    praise="gathered, changed on one rank, and divided again",
)
