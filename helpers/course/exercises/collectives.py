"""Answers of lesson 03: the rungs of a ring all-reduce, a bug to plant, what messages cost, and mistakes that
people make there."""

from __future__ import annotations

from helpers.course.exercises import collectives_trials as trials
from helpers.course.exercises.builds import RankExercise
from helpers.course.exercises.faults import fault
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions import collectives as solutions
from helpers.course.exercises.trials import build, formula

MUST_SEND = """
correct: a rank lacks, or gives away, every part but one; an all-reduce does both

an all-reduce is a reduce-scatter and an all-gather: it sends twice as much
    2 * others if collective == "all_reduce" else others -> others
a rank need not send its own part to itself: (N - 1) / N of the tensor
    * (ranks - 1) / ranks ->
that is what all ranks send together
    * (ranks - 1) / ranks -> * (ranks - 1)
here S is the full tensor, of which a rank's part is 1 / N; it sends that N - 1 times
    * (ranks - 1) / ranks -> / ranks
only an all-reduce has two halves
    2 * others if collective == "all_reduce" else others -> 2 * others
a send is one message of the full tensor, however many ranks look on
    == "send" -> == "nothing"
"""
must_send = formula(
    solutions.must_send_solution,
    [
        ("all_reduce", 1e6, 4),
        ("reduce_scatter", 1e6, 4),
        ("all_gather", 16e9, 8),
        ("all_reduce", 1e9, 64),
        ("all_to_all", 1e6, 2),
        ("broadcast", 1e6, 8),
        ("send", 1e6, 4),
    ],
    MUST_SEND,
)

EXCHANGE = """
correct: every rank sends and receives at once, so none waits for a rank that waits too

that went to the left and came from the right: the right neighbour has the next higher rank
    outgoing, (rank + 1) -> outgoing, (rank - 1)
    incoming, (rank - 1) -> incoming, (rank + 1)
that is this rank's own tensor: the left neighbour's must be received
    request.wait() -> request.wait()
        incoming.copy_(outgoing)
nothing has arrived in `incoming`: receive into that very tensor, and wait
    dist.irecv, incoming -> dist.irecv, torch.empty_like(incoming)
"""
exchange = build(
    solutions.exchange_solution, trials.exchanged, EXCHANGE, together=True, example=trials.what_arrived
)

REDUCE_SCATTER = """
correct: the sums grow while they travel, and each rank is left with the part that it owns

nothing was added to it: rank r begins by sending part r - 1, not its own, and then passes on what it has just
added to
    rank - step - 2 -> rank - step - 1
    rank - step - 1) % ranks], incoming -> rank - step) % ranks], incoming
the parts walk down: in exchange i rank r sends part r - 1 - i, not r - 1 + i
    rank - step - 2 -> rank + step - 2
    rank - step - 1) % ranks], incoming -> rank + step - 1) % ranks], incoming
what you send must walk down too: in exchange i rank r sends part r - 1 - i
    rank - step - 1) % ranks], incoming -> rank + step - 1) % ranks], incoming
what arrives walks down too: in exchange i rank r adds to part r - 2 - i
    rank - step - 2 -> rank + step - 2
one exchange less than there are ranks, and these are not always two
    range(ranks - 1) -> range(1)
what arrives must be added to this rank's own numbers, not put in their place
    arriving += incoming -> arriving.copy_(incoming)
`tensor` is as it was: add in place, to views of it (`parts[k] = parts[k] + ...` makes a new tensor)
    tensor.tensor_split -> tensor.clone().tensor_split
the last elements were left out: the size need not divide by the number of ranks
    tensor.tensor_split -> tensor[: len(tensor) // ranks * ranks].tensor_split
whole tensors went round: send one part per exchange
    parts = tensor.tensor_split(ranks) -> parts = [tensor.clone() for _ in range(ranks)]
    arriving += incoming -> tensor += incoming
            parts[(rank - step - 2) % ranks].copy_(incoming)
"""
ring_reduce_scatter = build(
    solutions.ring_reduce_scatter_solution,
    trials.scattered,
    REDUCE_SCATTER,
    together=True,
    example=trials.sums_that_grow,
)

SENT, CAME = "exchange(parts[(rank - step) % ranks]", "parts[(rank - step - 1) % ranks])"
ring_all_gather = build(
    solutions.ring_all_gather_solution,
    trials.gathered,
    together=True,
    example=trials.sums_that_go_round,
    praise="each part went once round the ring, and nothing was added to it",
    mistakes={
        (CAME, f"(incoming := parts[0].new_empty({CAME[:-1]}.shape)))\n        {CAME[:-1]}.add_(incoming)"):
            "these parts are finished: copy them, do not add",
        (SENT, "exchange(parts[(rank - step + 1) % ranks]", CAME, "parts[(rank - step) % ranks])"):
            "only part r is finished on rank r: begin with that",
        (SENT, "exchange(parts[rank]"):
            "pass on what has just arrived; your own part goes out once, in exchange 0",
        (SENT, SENT.replace("-", "+")): "what you send walks down: in exchange i rank r sends part r - i",
        (CAME, CAME.replace("- step", "+ step")):
            "what arrives walks down: in exchange i it is part r - 1 - i of rank r's tensor",
        ("range(ranks - 1)", "range(1)"):
            "one exchange less than there are ranks, and these are not always two",
        ("tensor.tensor_split", "tensor.clone().tensor_split"):
            "the parts must stand in `tensor` itself, not in a copy",
    },
)  # fmt: skip

passes_raw = fault(
    solutions.passes_raw_solution,
    ring_reduce_scatter,
    worlds=(3, 4),
    rungs=(),
    mistakes={
        "each rank still adds what arrives to its own part; only what it sends next is another":
            ("mine += incoming", "mine.copy_(incoming)"),
        "it begins like the right one, with part r - 1":
            ("(rank - 1)", "rank", "(rank - step - 2)", "(rank - step - 1)"),
    },
)  # fmt: skip

ALL_REDUCE_SECONDS = """
correct: each message costs its latency and its bytes, and you counted those that must wait for one another

the sum must come back as well: as many messages again
    return 2 * -> return
a ring's messages hold one part, 1 / N of the tensor
    (ranks - 1) / ranks * tensor_bytes -> (ranks - 1) * tensor_bytes
in a tree pairs add up at the same time: log2 N levels
    math.log2(ranks) -> ranks - 1
a rank need not talk to itself: N - 1
    ranks - 1, (ranks - 1) * -> ranks, ranks *
    (ranks - 1) / ranks * -> 1 *
    "ring": (ranks - 1 -> "ring": (ranks
every message costs a latency, not only the first
    rounds * latency -> 0.5 * latency
a pipelined tree works on all levels at once: S / kept one way, however many levels
    levels, tensor_bytes / kept -> levels, levels * tensor_bytes
its bytes are more than S, not less: divide by `kept`
    tensor_bytes / kept -> tensor_bytes * kept
`kept` is an argument: others than 0.92 are tried
    tensor_bytes / kept -> tensor_bytes / 0.92
its first piece still climbs all levels: 2 log2 N latencies
    levels, tensor_bytes / kept -> 1, tensor_bytes / kept
bytes over bytes per second are seconds
    sent / bandwidth -> sent * bandwidth
"""
all_reduce_seconds = formula(
    solutions.all_reduce_seconds_solution,
    [
        (way, size, ranks, 1e-5, 5e10, kept)
        for size, ranks, kept in ((1e9, 4, 0.9), (1e3, 64, 0.92), (16e9, 1024, 0.95))
        for way in ("naive", "tree", "pipelined tree", "ring")
    ],
    ALL_REDUCE_SECONDS,
)

EXPOSED = """
correct: the link works while the pass does, but only on buckets that are ready

the last bucket is ready when the pass ends, so at least its seconds are exposed
    max(seconds, -> max(0,
before the first bucket is ready, there is nothing to send: (n - 1) / n of the pass hide
    * (buckets - 1) / buckets ->
the buckets take the link one after another
    buckets * seconds - hidden -> seconds - hidden
neither way is always the faster: each bucket takes the smaller number of seconds
    min(ways) -> max(ways)
"""
exposed = formula(
    solutions.exposed_solution,
    [
        (8, (0.1, 0.2), 0.4),
        (100, (0.03, 0.01), 5.0),
        (1, (0.5, 0.4), 2.0),
        (1000, (0.004, 0.005), 0.8),
    ],
    EXPOSED,
)


# --- the companion's

HALVE_AND_DOUBLE = """
correct: you sent as many bytes as the ring does, in 2 log2 N exchanges

that is the way down: each rank has a finished part, and now the parts must come together again
    in reversed(way) -> in []
the sum is right, but whole tensors were exchanged: each exchange of the first half carries half of the one
before
    low, high = mine.chunk(2) -> low = high = mine
    swap(rank ^ gap, given, incoming) -> swap(rank ^ gap, given.clone(), incoming)
    in reversed(way) -> in []
"""
halve_and_double = build(
    solutions.halve_and_double_solution, trials.summed_in_halves, HALVE_AND_DOUBLE, together=True
)

TWO_LEVEL_SECONDS = """
correct: the slow links carry only the part that each GPU is left with after the sum within its host

between the hosts a GPU sends only its part: the reduce-scatter has left it 1 / gpus of the tensor
    size / gpus -> size
at the end the parts must be gathered again within each host
    2 * within -> within
within a host a reduce-scatter is enough, and later an all-gather: half an all-reduce each
    "reduce_scatter" -> "all_reduce"
`wire_bytes` takes the bytes of the full tensor: for an all-gather that is the result, as large as before the
reduce-scatter
    2 * within -> within + theory.wire_bytes("all_gather", size / gpus, gpus) / inside
the reduce-scatter leaves each GPU 1 / gpus of the tensor, whatever the number of hosts
    size / gpus -> size / hosts
the three go one after another, so their times add up
    2 * within + -> max(2 * within,
    / across -> / across)
in the all-reduce across, a GPU meets the one GPU of each other host that holds the same part: `hosts` ranks
    gpus, hosts) -> gpus, hosts * gpus)
`inside` is the speed within a host, `across` the one between hosts
    / across -> / other
    / inside -> / across
    / other -> / inside
"""
two_level_seconds = formula(
    solutions.two_level_seconds_solution,
    [(8e9, 2, 8, 400e9, 50e9), (26e9, 16, 4, 100e9, 12.5e9)],
    TWO_LEVEL_SECONDS,
)

all_numbers = RankExercise(
    lambda ranks, random: [{"number": number} for number in random.sample(range(10, 100), ranks)],
    lambda rank, given: [own["number"] for own in given],
    mistakes={
        "that is one number over and over: each broadcast needs a source of its own, and a fresh tensor": (
            lambda rank, given: [given[0]["number"]] * len(given)
        )
    },
    solution=solutions.gather_by_broadcast_solution,
    praise="every rank has all numbers in order. A real all-gather sends the same bytes, "
    "but all ranks send at once",
)
