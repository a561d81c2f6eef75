"""Answers of lesson 05, and the mistakes that people make there."""

from helpers import theory
from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

llama_bytes = Exercise(
    reference=lambda batch, sequence, width, layers, element, ranks: theory.tensor_parallel_wire_bytes(
        batch, sequence, width, layers, element, ranks, all_reduces=7
    ),
    cases=(
        {"batch": 4, "sequence": 32, "width": 64, "layers": 4, "element": 4, "ranks": 4},
        {"batch": 1, "sequence": 4096, "width": 4096, "layers": 32, "element": 2, "ranks": 8},
    ),
    mistakes={
        "that is Megatron-LM's four: q, k, v, gate and up each sum a gradient of their own": lambda batch, sequence, width, layers, element, ranks: (
            theory.tensor_parallel_wire_bytes(batch, sequence, width, layers, element, ranks)
        ),
        "that is the backward pass; two come forward": lambda batch, sequence, width, layers, element, ranks: theory.tensor_parallel_wire_bytes(
            batch, sequence, width, layers, element, ranks, all_reduces=5
        ),
        "that is what is logged; an all-reduce sends 2 (t - 1) / t of it": lambda batch, sequence, width, layers, element, ranks: (
            7 * layers * element * batch * sequence * width
        ),
    },
    praise="seven all-reduces per block, 1.75 times Megatron-LM's bytes",
)
activations_kept = Exercise(
    reference=lambda ranks: (4 + 12 / ranks) / 16,
    cases=({"ranks": 2}, {"ranks": 4}, {"ranks": 8}),
    mistakes={
        "four of the sixteen are whole on every rank": lambda ranks: 1 / ranks,
        "that is the number of ebsh; divide by one process's sixteen": lambda ranks: 4 + 12 / ranks,
        "that is how many times fewer; asked is the part that is kept": lambda ranks: 16 / (4 + 12 / ranks),
    },
    praise="never less than a quarter",
)
row_parallel_output = RankExercise(
    expected=lambda rank, ranks: [100 + sum(other + 1 for other in range(ranks)), 200 + sum((other + 1) * other for other in range(ranks))],
    mistakes={
        "the bias was summed too: add it once, after the sum": lambda rank, ranks: [
            100 * ranks + sum(other + 1 for other in range(ranks)),
            200 * ranks + sum((other + 1) * other for other in range(ranks)),
        ],
        "the bias is missing": lambda rank, ranks: [sum(other + 1 for other in range(ranks)), sum((other + 1) * other for other in range(ranks))],
        "that is this rank's part of the sum": lambda rank, ranks: [100 + rank + 1, 200 + (rank + 1) * rank],
    },
    praise="sum the products, then add the bias once",
)
