"""Lesson 18's figures: their sentences, and what is drawn."""

from helpers import plots


def test_the_hops_that_cross_the_cable_are_counted_and_drawn():
    figure = plots.cluster(
        {"in order": [0, 0, 1, 1], "dealt out": [0, 1, 0, 1], "one machine": [0, 0]}, "Title"
    )
    assert (
        "in order: machine 0 has ranks 0, 1, machine 1 has ranks 2, 3; 2 of 4 hops of the ring "
        "cross the cable" in figure.sentence
    )
    assert "dealt out: machine 0 has ranks 0, 2, machine 1 has ranks 1, 3; 4 of 4 hops" in figure.sentence
    assert "one machine: machine 0 has ranks 0, 1; 0 of 2 hops" in figure.sentence and figure.png


def test_a_machine_with_one_rank_and_three_machines():
    sentence = plots.cluster({"uneven": [0, 0, 1, 2]}, "Title").sentence
    assert "machine 0 has ranks 0, 1, machine 1 has rank 2, machine 2 has rank 3; 3 of 4 hops" in sentence


def test_lost_time_says_what_is_lost_at_the_chosen_intervals():
    figure = plots.lost_time({"8 GPUs": ([1, 10, 100], [0.5, 0.1, 0.2])}, {"8 GPUs": (20, 0.09)}, "Title")
    assert (
        figure.sentence == "Figure: Title. Least, at the intervals chosen: 8 GPUs: 9.0 % at 20 minutes."
        and figure.png
    )
