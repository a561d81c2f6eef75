"""Answers of lesson 04, and the mistakes that people make there."""

from helpers import theory
from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

accumulation_steps = Exercise(
    reference=lambda train_batch, micro_batch, ranks: train_batch / (micro_batch * ranks),
    cases=({"train_batch": 64, "micro_batch": 2, "ranks": 4}, {"train_batch": 1024, "micro_batch": 1, "ranks": 64}),
    mistakes={
        "every rank runs micro-batches of its own": lambda train_batch, micro_batch, ranks: train_batch / micro_batch,
        "that is a rank's share of the batch; it is cut into micro-batches": lambda train_batch, micro_batch, ranks: train_batch / ranks,
        "the other way round": lambda train_batch, micro_batch, ranks: micro_batch * ranks / train_batch,
    },
    praise="with twice the ranks, half the accumulation keeps the same learning",
)
data_parallel_step_bytes = Exercise(
    reference=lambda parameters, ranks, element, accumulation: theory.wire_bytes("all_reduce", element * parameters, ranks),
    cases=(
        {"parameters": 220_544, "ranks": 4, "element": 2, "accumulation": 4},
        {"parameters": 1_000_000, "ranks": 2, "element": 4, "accumulation": 8},
    ),
    mistakes={
        "the gradients are averaged once per step, not once per micro-batch": lambda parameters, ranks, element, accumulation: (
            accumulation * theory.wire_bytes("all_reduce", element * parameters, ranks)
        ),
        "that is what is logged, the size of the message; a ring sends more": lambda parameters, ranks, element, accumulation: element * parameters,
        "an all-reduce is a reduce-scatter and an all-gather": lambda parameters, ranks, element, accumulation: theory.wire_bytes(
            "all_gather", element * parameters, ranks
        ),
    },
    praise="accumulation is free on the wire",
)
mean_over_sequences = RankExercise(
    expected=lambda rank, ranks: sum(10 * (other + 1) ** 2 for other in range(ranks)) / sum(other + 1 for other in range(ranks)),
    mistakes={
        "that is the mean of the means; a rank with more sequences must count more": lambda rank, ranks: 10 * (ranks + 1) / 2,
        "that is its own mean: nothing was communicated": lambda rank, ranks: 10 * (rank + 1),
        "that is a sum: divide by all sequences": lambda rank, ranks: sum(10 * (other + 1) ** 2 for other in range(ranks)),
    },
    praise="sum the losses and the counts, then divide",
)
