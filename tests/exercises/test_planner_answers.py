"""What lessons 17 and 18 say to functions that return something else than a dict."""

import pytest
from helpers.course.exercises.trials import complete


@pytest.mark.parametrize("got, words", [(1.5, "not a float"), (None, "not nothing"), ([1, 2], "not a list")])
def test_what_is_no_dict_is_told_what_to_return(got, words):
    with pytest.raises(TypeError, match=f"moments of stage 1: return a dict with loss, step, {words}"):
        complete(got, ("loss", "step"), "moments of stage 1: ")


def test_a_name_that_is_missing_is_named():
    with pytest.raises(KeyError, match="moments of stage 1: step is missing"):
        complete({"loss": 1}, ("loss", "step"), "moments of stage 1: ")
