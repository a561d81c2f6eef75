"""Cards: what was expected beside what was found turns red, whatever the difference."""

import io

import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image
from helpers import bytes_card, compare, traffic_card
from helpers.course.plots.pointing import formula_lines
from helpers.course.plots.style import LOOK, RIGHT, WRONG
from helpers.tools.measure.held import CATEGORIES, Snapshot


def marks(plot):
    """{mark: its color} of a card's rows, from the top."""
    texts = [text for text in plot.figure.axes[0].texts if {"✓", "✗"} & set(text.get_text())]
    return [(text.get_text().replace("\n", " "), text.get_color().upper()) for text in texts]


def is_narrow(plot):
    return Image.open(io.BytesIO(plot.png)).size[0] <= 900


# --- compare


def test_equal_numbers_get_a_mark_and_unequal_ones_both_numbers():
    plot = compare({"parameters": (441_088, 441_088), "other": (4, 8)}, "Title", "bytes")
    assert marks(plot) == [("✓ 441,088", RIGHT), ("✗ 8 instead of 4", WRONG)]
    said = "parameters formula 441,088, measured 441,088; other formula 4, measured 8. 1 of 2 differs."
    assert plot.sentence == f"Figure: Title, bytes. {said}"
    assert LOOK["parameters"][0] in {
        to_hex(bar.get_facecolor()).upper() for bar in plot.figure.axes[0].patches
    }


@pytest.mark.parametrize(
    "expected, found",
    [(10**10, 10**10 + 1), (5.5, float("nan")), (1.0, float("inf")), (0, 1e-12), (1.0, -1.0)],
)
def test_nothing_else_is_equal(expected, found):
    plot = compare({"a": (expected, found)}, "Title", "bytes")
    assert plot.sentence.endswith("1 of 1 differs.") and marks(plot)[0][1] == WRONG and is_narrow(plot)


def test_a_tolerance_is_a_part_of_the_expected_number_and_is_said():
    pairs = {"a": (100, 101), "b": (100.0, 101.1), "none": (0, 1)}
    plot = compare(pairs, "Title", "s", within=0.01, sides=("predicted", "clock"))
    assert [color for _, color in marks(plot)] == [RIGHT, WRONG, WRONG]
    assert marks(plot)[0][0] == "100, -1.0% ✓ 101"  # what was predicted, and how far it is off
    assert "a predicted 100, clock 101;" in plot.sentence and "✓ within 1 %. 2 of 3 differ." in plot.sentence


def test_tensors_are_compared_as_numbers():
    assert compare({"a": (torch.tensor(2), 2.0)}, "Title", "s").sentence.endswith("They agree.")


@pytest.mark.parametrize(
    "pairs, said", [({}, "nothing to compare"), ({"a": 3}, "a: give a pair"), ({"b": (1,)}, "b: give")]
)
def test_what_is_no_pair_is_refused(pairs, said):
    with pytest.raises(ValueError, match=said):
        compare(pairs, "Title", "bytes")


# --- bytes_card


def zero_1(parameters, ranks):
    """Bytes by category."""
    held = {
        "parameters": 2 * parameters,  # in bf16
        "gradients": 2 * parameters,
    }
    held["optimizer states"] = 8 * parameters / ranks
    return held


def test_each_bar_stands_beside_the_line_that_computes_it():
    plot = bytes_card(
        {"parameters": 80, "gradients": 80, "optimizer states": 160}, zero_1, "Title", parameters=40, ranks=2
    )
    (axes,) = plot.figure.axes
    rows = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert '    """Bytes by category."""' not in rows and "def zero_1(parameters, ranks):" in rows
    line = rows['    held["optimizer states"] = 8 * parameters / ranks']
    sky = [bar for bar in axes.patches if to_hex(bar.get_facecolor()).upper() == LOOK["optimizer states"][0]]
    assert [int(bar.get_y()) for bar in sky] == [int(line)]
    assert rows["✓ 160"] == line and plot.sentence.endswith("held 160. All 3 agree.")


def test_what_no_line_predicts_is_a_red_row_of_its_own():
    held = Snapshot(
        "", {**dict.fromkeys(CATEGORIES, 0), "parameters": 80, "gradients": 79, "other": 4}, 0, True, "cpu"
    )
    plot = bytes_card(held, zero_1, "Title", parameters=40, ranks=2)
    assert [words for words, color in marks(plot) if color == WRONG] == [
        "✗ 79 instead of 80",
        "✗ 0 instead of 160",
        "✗ 4 instead of 0",
    ]
    assert "no line predicts: other" in [text.get_text() for text in plot.figure.axes[0].texts]
    assert plot.sentence.endswith("other formula 0, held 4. 3 of 4 differ.")


def test_large_numbers_stay_within_the_page():
    held = {"parameters": 16_060_522_497, "gradients": 16_060_522_496, "optimizer states": 64_242_089_984}
    plot = bytes_card(held, zero_1, "Title", parameters=8_030_261_248, ranks=1)
    assert is_narrow(plot) and marks(plot)[0][0] == "✗ 16,060,522,497 instead of 16,060,522,496"


def in_one_line(n):
    return {"parameters": 2 * n, "gradients": 2 * n}


def by_a_loop(n):
    return {name: n for name in ("parameters", "gradients")}


def wide(n):
    return {"parameters": 2 * n}  # a comment that goes on and on, beyond what a card has room for


def long(n):
    one = n
    two = one + one
    three = two + one
    four = two + two
    five = four + one
    six = four + two
    seven = four + three
    eight = four + four
    nine = eight + one
    held = {}
    held["parameters"] = nine + five - six - seven + n
    return held


def test_every_right_formula_has_a_card():
    ends = {in_one_line: "no line of its own: gradients", by_a_loop: "no line of its own: gradients"}
    ends |= {
        wide: '    return {"parameters": 2 * n}',
        long: '    held["parameters"] = nine + five - six - seven + n',
    }
    for formula, end in ends.items():
        plot = bytes_card(formula(3), formula, "Title", n=3)
        (axes,) = plot.figure.axes
        written = [text.get_text() for text in axes.texts if text.get_family() == ["monospace"]]
        assert written[-1] == end and "agree" in plot.sentence and is_narrow(plot)
    assert len(written) == 1


def test_formulas_whose_text_cannot_be_read_are_refused():
    with pytest.raises(ValueError, match="nowhere: define it in a cell or a file"):
        bytes_card({}, eval("lambda n: {}"), "Title", n=3)
    named = lambda n: {"parameters": n}  # noqa: E731
    with pytest.raises(ValueError, match="write <lambda> as a `def`"):
        formula_lines(named)


# --- traffic_card


def test_a_bar_is_as_long_as_what_its_messages_carry():
    ways = {
        "yours": {"carried": {"gradients": 75.0, "parameters": 75, "other": 0.02}},
        "all": {"optimizer states": 150},
    }
    plot = traffic_card(ways, "Title", parameters=100, ranks=4)
    states = "master weights 0, optimizer states"
    yours = f"yours: gradients 1, parameters 1, {states} 0, other 0.02 elements; together 2"
    none = f"all: gradients 0, parameters 0, {states} 2, other 0; together 2"
    assert plot.sentence == f"Figure: Title, in Ψ (N − 1) / N. {yours}. {none}."
    wide = {bar.get_width() for bar in plot.figure.axes[0].patches}
    assert {1.0, 2.0} < wide and is_narrow(plot)
    assert [text.get_text() for text in plot.figure.legends[0].get_texts()] == [
        "gradients",
        "parameters",
        "optimizer states",
    ]
    assert "gradients 75," in traffic_card(ways, "Title").sentence


def test_parameters_without_ranks_are_no_unit():
    with pytest.raises(ValueError, match="parameters and ranks together"):
        traffic_card({"a": {}}, "Title", parameters=3)
