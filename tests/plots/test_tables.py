<<<<<<< HEAD
"""Tables of results: rendered in a notebook, the same as text."""
=======
"""A table is rendered from Markdown, and its plain text is what a test compares."""
>>>>>>> a1ffddd (Lesson 03: constants of NCCL's own model for many GPUs, processor time and wake-ups of small messages, two levels; checks and tests follow)

import pytest
from helpers import plots

<<<<<<< HEAD
ROWS = {"attention": {"predicted": 16640, "share": 33.25, "equal": True}, "[norm](https://x.y)": {"predicted": 128, "share": 0.5, "equal": False}}


def test_text_is_aligned_and_links_are_words():
    assert repr(plots.table(ROWS, "Counts")).splitlines() == [
        "Counts",
        "           predicted  share  equal",
        "attention     16,640   33.2  yes",
        "norm             128    0.5  no",
    ]


def test_it_is_rendered_with_the_same_cells():
    bundle = plots.table(list(ROWS.values()))._repr_mimebundle_()
    assert bundle["text/markdown"].splitlines()[:3] == ["| predicted | share | equal |", "| --: | --: | --- |", "| 16,640 | 33.2 | yes |"]
    assert "33.2  yes" in bundle["text/plain"]


@pytest.mark.parametrize("rows", [[], [{"a": 1}, {"b": 2}]])
def test_no_rows_or_unequal_ones_are_refused(rows):
    with pytest.raises(ValueError, match="same columns"):
=======
ROWS = [{"link": "[fast](https://example.org)", "GB/s": "450", "off": "+8 %"}, {"link": "slow", "GB/s": "12.5", "off": "-10 %"}]


def test_the_plain_text_is_aligned_and_has_no_addresses():
    assert repr(plots.table(ROWS)) == "link  GB/s    off\nfast   450   +8 %\nslow  12.5  -10 %"


def test_the_markdown_keeps_links_and_puts_numbers_to_the_right():
    bundle = plots.table(ROWS)._repr_mimebundle_()
    assert bundle["text/plain"] == repr(plots.table(ROWS))
    heading, line, first, second = bundle["text/markdown"].splitlines()
    assert heading == "| link | GB/s | off |" and line == "| --- | --: | --: |"
    assert first == "| [fast](https://example.org) | 450 | +8 % |" and second == "| slow | 12.5 | -10 % |"


@pytest.mark.parametrize("rows", [[], [{"a": 1}, {"b": 1}]], ids=["no row", "other columns"])
def test_rows_must_have_the_same_columns(rows):
    with pytest.raises(ValueError, match="the same columns"):
>>>>>>> a1ffddd (Lesson 03: constants of NCCL's own model for many GPUs, processor time and wake-ups of small messages, two levels; checks and tests follow)
        plots.table(rows)
