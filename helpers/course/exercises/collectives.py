"""Answers of lesson 03: the rungs of a ring all-reduce, a bug to plant, what messages cost, and mistakes that
people make there."""

from __future__ import annotations

from helpers.course.exercises import collectives_trials as trials
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.stubs import Returning, Stubs

stubs = Stubs("collectives")

must_send = stubs.formula(
    "must_send",
    [
        ("all_reduce", 1e6, 4),
        ("reduce_scatter", 1e6, 4),
        ("all_gather", 16e9, 8),
        ("all_reduce", 1e9, 64),
        ("all_to_all", 1e6, 2),
        ("broadcast", 1e6, 8),
        ("send", 1e6, 4),
    ],
)

exchange = stubs.build(
    "exchange", Returning(trials.exchanged), together=True, example=Returning(trials.what_arrived)
)

ring_reduce_scatter = stubs.build(
    "ring_reduce_scatter",
    Returning(trials.scattered),
    together=True,
    example=Returning(trials.sums_that_grow),
)

ring_all_gather = stubs.build(
    "ring_all_gather", Returning(trials.gathered), together=True, example=Returning(trials.sums_that_go_round)
)

passes_raw = stubs.fault("passes_raw", ring_reduce_scatter, worlds=(3, 4), rungs=())

all_reduce_seconds = stubs.formula(
    "all_reduce_seconds",
    [
        (way, size, ranks, 1e-5, 5e10, kept)
        for size, ranks, kept in ((1e9, 4, 0.9), (1e3, 64, 0.92), (16e9, 1024, 0.95))
        for way in ("naive", "tree", "pipelined tree", "ring")
    ],
)

exposed = stubs.formula(
    "exposed",
    [
        (8, (0.1, 0.2), 0.4),
        (100, (0.03, 0.01), 5.0),
        (1, (0.5, 0.4), 2.0),
        (1000, (0.004, 0.005), 0.8),
    ],
)


# --- the companion's

halve_and_double = stubs.build("halve_and_double", Returning(trials.summed_in_halves), together=True)

two_level_seconds = stubs.formula(
    "two_level_seconds", [(8e9, 2, 8, 400e9, 50e9), (26e9, 16, 4, 100e9, 12.5e9)]
)

all_numbers = stubs.build("all_numbers", Returning(trials.each_rank_has_a_number))
