"""Answers of lesson 03, and the mistakes that people make there."""

from helpers import theory
from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

naive_all_reduce_bytes = Exercise(
    reference=lambda size, ranks: (ranks - 1) * size,
    cases=({"size": 1000, "ranks": 4}, {"size": 441_088, "ranks": 8}),
    mistakes={
        "a rank sends nothing to itself": lambda size, ranks: ranks * size,
        "that is the ring; here every rank sends its whole tensor": lambda size, ranks: theory.wire_bytes("all_reduce", size, ranks),
        "that is what all ranks send together": lambda size, ranks: ranks * (ranks - 1) * size,
    },
    praise="every other rank gets the tensor as it is; a ring passes on sums of parts, and so sends N / 2 times less",
)
even_size = Exercise(
    reference=lambda ranks, latency, bandwidth: ranks * latency * bandwidth,
    cases=({"ranks": 2, "latency": 1e-4, "bandwidth": 1e9}, {"ranks": 8, "latency": 1e-5, "bandwidth": 5e10}),
    mistakes={
        "that is one message; a tensor is sent in as many parts as there are ranks": lambda ranks, latency, bandwidth: latency * bandwidth,
        "both parts of the time come 2 (N - 1) times": lambda ranks, latency, bandwidth: 2 * (ranks - 1) * latency * bandwidth,
        "compare latency with bytes / bandwidth, not with bytes x bandwidth": lambda ranks, latency, bandwidth: ranks * latency / bandwidth,
    },
    praise="a message costs its latency however small it is: below this size fewer messages help, above it only fewer bytes",
)
left_neighbour = RankExercise(
    inputs=lambda ranks, random: [{"number": number} for number in random.sample(range(10, 100), ranks)],
    expected=lambda rank, given: given[rank - 1]["number"],
    mistakes={
        "that is its own number: nothing has arrived": lambda rank, given: given[rank]["number"],
        "that is the right neighbour's": lambda rank, given: given[(rank + 1) % len(given)]["number"],
        "that is what stood in the tensor before: is the message awaited?": lambda rank, given: 0,
    },
    praise="all sent and received at once, so nobody waited for one who was waiting too",
)
all_numbers = RankExercise(
    inputs=lambda ranks, random: [{"number": number} for number in random.sample(range(10, 100), ranks)],
    expected=lambda rank, given: [own["number"] for own in given],
    mistakes={
        "that is one number over and over: each broadcast needs a source of its own, and a fresh tensor": lambda rank, given: (
            [given[0]["number"]] * len(given)
        ),
    },
    praise="each rank was the source once, one broadcast after another; a real all-gather sends the same bytes with all ranks at once",
)
