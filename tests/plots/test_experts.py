"""Figures of lesson 16: their sentences count what is drawn."""

from helpers import plots


def test_the_way_of_tokens_names_what_is_dropped():
    plot = plots.dispatch([[2, 0, 2, 2, 1, 3], [0, 0, 3, 0, 1, 2]], 4, 2, "Title")
    words = (
        "rank 0: 6 tokens, 5 of 8 rows filled, dropped 3; rank 1: 6 tokens, 5 of 8 rows filled, dropped 3."
    )
    assert plot.sentence == f"Figure: Title. {words}" and plot.png


def test_nothing_dropped_is_not_mentioned():
    assert "dropped" not in plots.dispatch([[0, 1], [1, 0]], 2, 1, "Title").sentence


def test_loads_have_a_bar_for_each_expert_and_the_line_of_what_it_takes():
    plot = plots.expert_loads(
        {"step 1": [(30, 0), (32, 10)], "step\n2": [(31, 0), (32, 9)]}, "Title", capacity=32
    )
    assert plot.sentence.startswith(
        "Figure: Title. step 1: expert 0 30 (0 dropped), expert 1 42 (10 dropped); step 2: "
    )
    assert plot.sentence.endswith("; an expert takes 32.") and plot.png
    assert "expert 1 2 (0 dropped);" in plots.expert_loads({"a": [(3, 0), (2, 0)]}, "Title", 9).sentence
