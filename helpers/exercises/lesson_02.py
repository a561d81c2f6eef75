"""Answers of lesson 02, and the mistakes that people make there."""

from helpers import theory
from helpers.exercises.engine import Exercise
from helpers.exercises.guesses import guess as guess

momentum_bytes = Exercise(
    reference=lambda parameters: 12 * parameters,
    cases=({"parameters": 1}, {"parameters": 220544}),
    mistakes={
        "that is Adam: how many moments does SGD with momentum keep?": lambda parameters: 16 * parameters,
        "that is SGD without momentum": lambda parameters: 8 * parameters,
        "the momentum is kept in fp32, 4 bytes": lambda parameters: 10 * parameters,
    },
    praise="momentum is one mean where Adam keeps two, and the master weights stay, since bf16 is too coarse to add small steps to",
)
largest_model = Exercise(
    reference=lambda memory: memory / 16,
    cases=({"memory": 24e9}, {"memory": 80e9}),
    mistakes={
        "that counts the bf16 weights alone; training holds gradients and optimizer states too": lambda memory: memory / 2,
        "that counts weights and gradients; Adam's states are missing": lambda memory: memory / 4,
        "fp32 master weights are missing": lambda memory: memory / 12,
    },
    praise="states alone set this bound, before a single activation is kept",
)
checkpoint_saving = Exercise(
    reference=lambda batch, sequence, width, heads: theory.block_activation_bytes(batch, sequence, width, heads, 2) - 2 * batch * sequence * width,
    cases=({"batch": 2, "sequence": 64, "width": 64, "heads": 4}, {"batch": 1, "sequence": 2048, "width": 12288, "heads": 96}),
    mistakes={
        "the block's input is still kept": lambda batch, sequence, width, heads: theory.block_activation_bytes(batch, sequence, width, heads, 2),
        "that is what remains, not what is saved": lambda batch, sequence, width, heads: 2 * batch * sequence * width,
        "that is fp32; the job is bf16, 2 bytes": lambda batch, sequence, width, heads: (
            theory.block_activation_bytes(batch, sequence, width, heads, 4) - 4 * batch * sequence * width
        ),
    },
    praise="everything else that the backward pass needs can be computed from the block's input again",
)
