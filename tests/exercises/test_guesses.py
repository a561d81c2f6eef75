"""A guess is answered, and never graded."""

import pytest
import torch
from helpers.course.exercises import data_parallelism as lesson_04
from helpers.course.exercises.guesses import guess


@pytest.mark.parametrize(
    "value, measured, words",
    [
        (7, 7.1688, "you said 7, it is 7.17: 2 % off"),
        (7.17, 7.17, "you said 7.17, it is 7.17: exactly so"),
        (1_376_256, 1_376_257, "you said 1,376,256, it is 1,376,257: less than 1 % off"),
        (70, 7.0, "you said 70, it is 7: 10 times too much"),
        (1e9, 4e9, "you said 1,000,000,000, it is 4,000,000,000: 4 times too little"),
        (2, 0, "you said 2, it is 0: 2 off"),
        (0, 0.0, "you said 0, it is 0: exactly so"),
    ],
)
def test_what_became_of_a_guess(value, measured, words, capsys):
    guess("bytes per parameter", value).compare(measured)
    assert capsys.readouterr().out == f"· {words} (bytes per parameter)\n"


@pytest.mark.parametrize("value", [..., None])
def test_no_guess_is_told_the_answer(value, capsys):
    guess("bytes per parameter", value).compare(7.17)
    assert capsys.readouterr().out == "· You made no guess. It is 7.17 (bytes per parameter).\n"


@pytest.mark.parametrize(
    "value",
    ["seven", True, [7], float("nan"), len, 10**5000, [7] * 10**6, 7j],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_gets_a_clear_word_and_stops_nothing(value, capsys):
    made = guess("bytes per parameter", value)
    made.compare(7)
    said, compared = capsys.readouterr().out.splitlines()
    assert (
        "a guess is a plain number" in said
        and compared.startswith("· You made no guess.")
        and len(said) < 400
    )


def test_a_comma_in_the_place_of_the_point_gets_a_clear_word_too(capsys):
    guess("bytes per parameter", 2, 5).compare(7)
    assert "a guess is a plain number, such as 7 or 2.5e9, and [2, 5] is none: with a point it is 2.5" in (
        capsys.readouterr().out
    )


def test_a_number_with_its_unit_is_told_what_to_leave_out(capsys):
    guess("bytes", "7.5 bytes")
    assert "'7.5 bytes' is none: leave out the unit and the quotes, 7.5 (bytes)" in capsys.readouterr().out


def test_a_tensor_of_one_element_is_a_number(capsys):
    guess("bytes", torch.tensor([7.0])).compare(torch.tensor(7))
    assert capsys.readouterr().out == "· you said 7, it is 7: exactly so (bytes)\n"


def test_every_lesson_module_offers_it():
    assert lesson_04.guess is guess
