"""Tables of results: rendered in a notebook, the same as text."""

import pytest
from helpers import plots

ROWS = {
    "attention": {"predicted": 16640, "share": 33.25, "equal": True},
    "[norm](https://x.y)": {"predicted": 128, "share": 0.5, "equal": False},
}


def test_text_is_aligned_and_links_are_words():
    assert repr(plots.table(ROWS, "Counts")).splitlines() == [
        "Counts",
        "           predicted  share  equal",
        "attention     16,640   33.2  yes",
        "norm             128    0.5  no",
    ]


def test_it_is_rendered_with_the_same_cells():
    bundle = plots.table(list(ROWS.values()))._repr_mimebundle_()
    assert bundle["text/markdown"].splitlines()[:3] == [
        "| predicted | share | equal |",
        "| --: | --: | --- |",
        "| 16,640 | 33.2 | yes |",
    ]
    assert "33.2  yes" in bundle["text/plain"]


@pytest.mark.parametrize("rows", [[], [{"a": 1}, {"b": 2}]])
def test_no_rows_or_unequal_ones_are_refused(rows):
    with pytest.raises(ValueError, match="same columns"):
        plots.table(rows)


def test_large_fractions_have_separators_and_a_bar_in_a_text_is_no_column():
    shown = plots.table({"a | b": {"bytes": 2794e9, "share": 0.12345}})
    assert repr(shown).splitlines()[1].split() == ["a", "|", "b", "2,794,000,000,000", "0.123"]
    assert shown.markdown.splitlines()[2] == "| a \\| b | 2,794,000,000,000 | 0.123 |"
