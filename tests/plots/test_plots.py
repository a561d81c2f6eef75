"""Every figure is a PNG with a sentence that holds its key numbers."""

import pytest
from helpers import plots
from helpers.measure.ledger import CATEGORIES, History

STATES = {"parameters": 4_000_000, "gradients": 2_000_000}
HISTORY = History(
    {category: [0, 10, 20, 30, 20, 10, 0] * 10 for category in ("parameters", "activations")}, [(0, "forward"), (30, "backward"), (69, "after step")]
)
FIGURES = {
    "memory bars": (plots.memory_bars({"bf16": {"predicted": STATES, "measured": STATES}}, "Title"), "measured 6,000,000 bytes"),
    "two clusters": (plots.memory_bars({"bf16": {"a": STATES}, "fp32": {"a": {"parameters": 5e12}}}, "Title"), "fp32: a 5.0 TB"),
    "per parameter": (plots.memory_bars({"stage 0": {"a": STATES, "b": None}}, "Title", 2_000_000), "a 3.000 bytes per parameter, b does not fit"),
    "memory over time": (plots.memory_over_time(HISTORY, "Title", {"peak": 60}), "a peak of 60 bytes"),
    "curves": (plots.curves({"line": ([1, 2], [3, 4])}, "Title", "x", "y", points={"dots": ([1, 2], [3, 5])}), "dots ends at 5"),
    "logarithmic curves": (plots.curves({"line": ([1, 2], [3, 4])}, "Title", "x", "y", log=True), "line ends at 4"),
    "traffic": (plots.byte_bars({"logged": {"all_reduce": 1000, "all_gather": 500}, "sent": 1700}, "Title"), "sent 1,700 bytes"),
    "ratios": (plots.grouped_bars({"all-\nreduce": {"predicted": 1.5, "sent": 1.5}}, "Title", "S"), "Title, S. all-reduce: predicted 1.50"),
    "rank contents": (plots.rank_contents([[1, 2], [10, 20]], [[11, 22], None], "Title"), "rank 0 [1, 2] -> [11, 22]; rank 1 [10, 20] -> nothing"),
    "gathered over time": (
        plots.gathered_over_time({"a": [True, False, True], "b": [False] * 3}, {"forward": 2, "backward": 1}, "Title"),
        "of 3 at which each is whole: a 2, b 0",
    ),
    "shares": (plots.share_bars({"tiny": {"a": 60.0, "b": 40.0}}, "Title", "%"), "a 60.0 %"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_png_and_sentence(name):
    plot, words = FIGURES[name]
    bundle = plot._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert bundle["text/plain"].startswith("Figure: Title") and words in bundle["text/plain"]


def test_the_same_data_make_the_same_picture():
    first, second = (plots.memory_bars({"": {"a": STATES}}, "Title")._repr_mimebundle_()["image/png"] for _ in range(2))
    assert first == second


def test_every_category_has_a_look_of_its_own():
    assert set(plots.LOOK) == set(CATEGORIES)
    assert len({colour for colour, _ in plots.LOOK.values()}) == len(plots.LOOK)


def test_phases_are_equally_wide_and_cover_every_event():
    places, columns = plots.phases(HISTORY)
    assert len(places) == len(HISTORY.total)
    assert [name for _, _, name in columns] == ["forward", "backward"]
    assert places[0] == 0 and places[30] == 1 and places[-1] == 2


def test_the_digits_of_a_sum_say_who_is_in_it():
    assert plots.contributors(4000) == [3] and plots.contributors(1101) == [0, 2, 3] and plots.contributors(0) == []
