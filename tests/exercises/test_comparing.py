"""Where two answers differ first, and how numbers read."""

import numpy
import pytest
from helpers.course.digits import shown, shown_apart
from helpers.course.exercises.comparing import difference


@pytest.mark.parametrize(
    "value, text",
    [
        (1_376_256, "1,376,256"),
        (1_376_256.0, "1,376,256"),
        (24e9, "24,000,000,000"),
        (2.5, "2.5"),
        (7.1666666667, "7.16667"),
        (1234567.8, "1,234,568"),
        (1e-5, "1e-05"),
        (0, "0"),
        (-3.0, "-3"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (True, "True"),
        ([1, 2.5], "[1, 2.5]"),
    ],
)
def test_numbers_as_they_are_read(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    "a, b", [(1.0000001, 1.0000002), (1376256.25, 1376256.5), (1e-9, 1.0000000001e-9), (0.1 + 0.2, 0.3)]
)
def test_different_numbers_never_read_alike(a, b):
    one, other = shown_apart(a, b)
    assert one != other


@pytest.mark.parametrize(
    "got, expected, found",
    [
        (1, 1.0, None),
        (1.0, 1.0 + 1e-7, None),
        (1, 2, ("", "1", "2")),
        (1_000_001, 1_000_000, ("", "1,000,001", "1,000,000")),
        (None, 2, ("", "None", "a number")),
        ("a", "b", ("", "'a'", "'b'")),
        (True, 1, ("", "True", "a number")),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], ("[1]", "2", "3")),
        ([1], [1, 3], ("", "1 element", "2")),
        ([1e-9, 1.0], [0.0, 1.0], None),
        ([[1], [2, 3]], [[1], [2, 4]], ("[1][1]", "3", "4")),
        ({"a": 1}, {"a": 2}, ("['a']", "1", "2")),
        ({}, {"a": 2}, ("", "without 'a'", "with it")),
        (float("nan"), float("nan"), None),
        (float("nan"), 1.0, ("", "nan", "1")),
    ],
)
def test_the_first_difference(got, expected, found):
    assert difference(got, expected, 1e-5) == found


def test_tensors_differ_by_shape_or_by_an_element_beyond_the_tolerance():
    right = numpy.arange(6, dtype="float32").reshape(2, 3)
    wrong = right.copy()
    wrong[1, 2] = 6
    assert difference(right + 1e-6, right, 1e-5, "`x`") is None
    assert difference(wrong, right, 1e-5, "`x`") == ("`x`[1, 2]", "6", "5")
    assert difference(right.ravel(), right, 1e-5, "`x`") == ("`x`", "a tensor of shape (6,)", "(2, 3)")
    assert difference([1, 2], right, 1e-5, "`x`") == ("`x`", "[1, 2]", "a tensor")
    assert difference(right.astype("int64"), right, 1e-5) is None
    assert difference(numpy.array([True]), numpy.array([False]), 1e-5) == ("[0]", "True", "False")
    assert difference(numpy.array([numpy.nan]), numpy.array([numpy.nan]), 1e-5) is None
