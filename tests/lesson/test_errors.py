"""Errors that are shown on purpose: printed in full, and nothing stops."""

import pytest
from helpers import expected_error, launch


def fails():
    raise ValueError("this batch is empty")


@pytest.mark.ranks
def test_a_launch_that_fails_on_purpose_is_printed_as_it_would_be_shown(capsys):
    with expected_error():
        launch(fails, ranks=1)
    assert capsys.readouterr().out.startswith(
        "RankError: rank 0 of 1 raised ValueError: this batch is empty\n"
    )


def test_another_error_is_raised_as_ever(capsys):
    with pytest.raises(ZeroDivisionError), expected_error(width=30):
        print("before")
        raise ZeroDivisionError
    assert capsys.readouterr().out == "before\n"


def test_an_error_that_does_not_come_is_a_fault():
    with pytest.raises(AssertionError, match="there was none"), expected_error(ValueError):
        pass


def test_a_long_message_is_broken_where_a_width_is_asked_for(capsys):
    with expected_error(ValueError, width=30):
        print("a batch without any rows, " * 2)
        raise ValueError("a batch without any rows, " * 3 + "\n  in one_step")
    lines = capsys.readouterr().out.splitlines()
    assert (
        max(map(len, lines)) <= 30
        and " ".join(" ".join(lines).split()).count("without any rows,") == 5
        and lines[-1] == "  in one_step"
    )


def test_a_width_in_which_nothing_fits_is_refused():
    for error, width in ((ValueError, 0), (ValueError, 4), (TypeError, True), (TypeError, 30.0)):
        with (
            pytest.raises(error, match="width must be from 5 to 1000, not "),
            expected_error(KeyError, width=width),
        ):
            raise KeyError
