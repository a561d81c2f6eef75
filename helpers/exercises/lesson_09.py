"""Answers of lesson 09, and the mistakes that people make there."""

from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

zero_3_largest_model = Exercise(
    reference=lambda memory, ranks, activations: ranks * (memory - activations) / 16,
    cases=({"memory": 80e9, "ranks": 8, "activations": 20e9}, {"memory": 24e9, "ranks": 2, "activations": 8e9}),
    mistakes={
        "that is one GPU: stage 3 divides all sixteen bytes": lambda memory, ranks, activations: (memory - activations) / 16,
        "gradients and the twelve bytes are there too": lambda memory, ranks, activations: ranks * (memory - activations) / 2,
        "that is ZeRO-2, which keeps parameters whole": lambda memory, ranks, activations: (memory - activations) / (2 + 14 / ranks),
        "every rank has activations of its own": lambda memory, ranks, activations: (ranks * memory - activations) / 16,
    },
    praise="all states are partitioned and activations are not, so each rank gives what its own activations leave",
)
stage_3_units = Exercise(
    reference=lambda accumulation, checkpointing: accumulation * (4 if checkpointing else 3),
    cases=(
        {"accumulation": 4, "checkpointing": False},
        {"accumulation": 4, "checkpointing": True},
        {"accumulation": 1, "checkpointing": True},
    ),
    mistakes={
        "every micro-batch gathers and reduces anew": lambda accumulation, checkpointing: 4 if checkpointing else 3,
        "that is stage 2's k + 1": lambda accumulation, checkpointing: accumulation + 1,
        "computing again needs the parameters again": lambda accumulation, checkpointing: 3 * accumulation,
        "gathered for the forward pass, and again for the backward pass": lambda accumulation, checkpointing: (
            accumulation * (3 if checkpointing else 2)
        ),
    },
    praise="who holds no layer must fetch it for every pass that uses it, in every micro-batch",
)
use_shards = RankExercise(
    inputs=lambda ranks, random: [{"own_weight": random.randint(2, 9), "inputs": random.sample(range(1, 100), ranks)} for _ in range(ranks)],
    expected=lambda rank, given: sum(number * own["own_weight"] for number, own in zip(given[rank]["inputs"], given)),
    mistakes={
        "that is its own weight only: gather the others": lambda rank, given: given[rank]["inputs"][rank] * given[rank]["own_weight"],
        "that uses its own weight for every input: gather the others": lambda rank, given: sum(given[rank]["inputs"]) * given[rank]["own_weight"],
        "that is the sum over the ranks' inputs: the weights travel, the inputs do not": lambda rank, given: sum(
            own["inputs"][owner] * own["own_weight"] for owner, own in enumerate(given)
        ),
    },
    praise="the weights travel to where the inputs are; each rank used all of them and keeps one",
)
