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
    praise="a host holds the parts of its own eight ranks, and for a moment what each of them is about to cut up",
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
    praise="each state is saved once, by its owner, however many ranks there are, and what can be made from another need not be saved",
)


def _part_of(values, rank, ranks):
    return values[rank * 8 // ranks : (rank + 1) * 8 // ranks]


change_a_weight = RankExercise(
    inputs=lambda ranks, random: [{"values": random.sample(range(1, 100), 8)} for _ in range(ranks)],
    expected=lambda rank, given: _part_of(given[0]["values"], rank, len(given)),
    mistakes={
        "that is the whole weight: your part is in `ds_tensor`": lambda rank, given: given[0]["values"],
        "those are this rank's own values: rank 0's are asked for, and `modifier_rank` says whose count": lambda rank, given: _part_of(
            given[rank]["values"], rank, len(given)
        ),
        "every rank's part begins where the one before ends": lambda rank, given: _part_of(given[0]["values"], 0, len(given)),
    },
    praise="only while it is gathered is the weight there to be changed, and on release rank 0's values go into every rank's part",
)
