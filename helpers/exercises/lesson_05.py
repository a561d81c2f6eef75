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
    praise="every column-parallel matrix of its own sends back a gradient of its own; a fused one sends the sum, once",
)
activations_kept = Exercise(
    reference=lambda ranks: (4 + 12 / ranks) / 16,
    cases=({"ranks": 2}, {"ranks": 4}, {"ranks": 8}),
    mistakes={
        "four of the sixteen are whole on every rank": lambda ranks: 1 / ranks,
        "that is the number of ebsh; divide by one process's sixteen": lambda ranks: 4 + 12 / ranks,
        "that is how many times fewer; asked is the part that is kept": lambda ranks: 16 / (4 + 12 / ranks),
    },
    praise="what enters a split layer is replicated, so no number of ranks makes it smaller",
)


def _row_parallel_inputs(ranks, random):
    bias = random.sample(range(100, 1000, 100), 2)
    return [{"own_input": random.randint(2, 9), "weights": random.sample(range(1, 10), 2), "bias": bias} for _ in range(ranks)]


def _products(given, output):
    return [own["own_input"] * own["weights"][output] for own in given]


row_parallel_output = RankExercise(
    inputs=_row_parallel_inputs,
    expected=lambda rank, given: [sum(_products(given, output)) + given[rank]["bias"][output] for output in (0, 1)],
    mistakes={
        "the bias was summed too: add it once, after the sum": lambda rank, given: [
            sum(_products(given, output)) + len(given) * given[rank]["bias"][output] for output in (0, 1)
        ],
        "the bias is missing": lambda rank, given: [sum(_products(given, output)) for output in (0, 1)],
        "that is this rank's part of the sum": lambda rank, given: [
            _products(given, output)[rank] + given[rank]["bias"][output] for output in (0, 1)
        ],
    },
    praise="a sum over ranks adds what each of them brings, so the bias, which all of them hold, is added after it",
)
