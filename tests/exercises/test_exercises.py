"""The checks say what is wrong, in words, for the answers that people really give."""

import importlib
import pkgutil

import pytest
from helpers import exercises
from helpers.exercises import lesson_00
from helpers.exercises.engine import Exercise, RankExercise

LESSONS = [
    importlib.import_module(f"helpers.exercises.{name}") for _, name, _ in pkgutil.iter_modules(exercises.__path__) if name.startswith("lesson_")
]
EVERY = {f"{lesson.__name__[-2:]}-{name}": value for lesson in LESSONS for name, value in vars(lesson).items()}
ALL = {name: value for name, value in EVERY.items() if isinstance(value, Exercise)}
MISTAKES = [(name, words, wrong) for name, exercise in ALL.items() for words, wrong in exercise.mistakes.items()]


@pytest.mark.parametrize("name", ALL)
def test_the_reference_is_correct(name):
    assert ALL[name].verdict(ALL[name].reference).startswith("correct")


@pytest.mark.parametrize("name, words, wrong", MISTAKES, ids=[f"{name}-{index}" for index, (name, _, _) in enumerate(MISTAKES)])
def test_every_known_mistake_is_answered_with_its_own_words(name, words, wrong):
    verdict = ALL[name].verdict(wrong)
    assert verdict.startswith("not yet: for ") and verdict.endswith(words)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda **case: None, "returns nothing so far"),
        (lambda **case: ..., "returns nothing so far"),
        (lambda **case: 1 / 0, "raised ZeroDivisionError"),
        (lambda: 1, "raised TypeError"),
        (lambda **case: "many", "where a number is asked for"),
        (lambda **case: -1, "is right"),
        (16, "needs your function itself"),
    ],
)
def test_other_wrong_answers_raise_nothing(name, answer, words):
    verdict = ALL[name].verdict(answer)
    assert verdict.startswith("not yet") and words in verdict


def test_a_fault_of_the_check_itself_is_not_hidden():
    with pytest.raises(KeyError):
        Exercise(reference=lambda: {}["missing"], cases=({},)).verdict(lambda: 1)


IN_RANKS = {name: value for name, value in EVERY.items() if isinstance(value, RankExercise)}
RANK_MISTAKES = [(name, words, wrong) for name, exercise in IN_RANKS.items() for words, wrong in exercise.mistakes.items()]


def reports_of(exercise, answer):
    return [answer(rank, exercise.ranks) for rank in range(exercise.ranks)]


@pytest.mark.parametrize("name", IN_RANKS)
def test_what_the_ranks_should_return_is_correct(name):
    exercise = IN_RANKS[name]
    assert exercise.verdict(reports_of(exercise, exercise.expected)).startswith(f"correct in {exercise.ranks} ranks")


@pytest.mark.parametrize("name, words, wrong", RANK_MISTAKES, ids=[f"{name}-{index}" for index, (name, _, _) in enumerate(RANK_MISTAKES)])
def test_every_known_mistake_of_a_rank_is_answered_with_its_own_words(name, words, wrong):
    exercise = IN_RANKS[name]
    verdict = exercise.verdict(reports_of(exercise, wrong))
    assert verdict.startswith("not yet: rank ") and verdict.endswith(words)


@pytest.mark.parametrize(
    "reports, words",
    [
        ([None, None], "rank 0 returned nothing"),
        (["2.5", "2.5"], "plain number"),
        ([[2.5], [2.5]], "plain number"),
        ([2.5, 3.0], "rank 1 returned 3 where 2.5 is right"),
    ],
)
def test_other_wrong_answers_of_ranks(reports, words):
    assert words in lesson_00.mean_of_squares.verdict(reports)


def fails():
    raise ValueError("oops")


def test_a_rank_that_fails_in_an_exercise_is_a_verdict(capsys):
    lesson_00.mean_of_squares.check(fails)
    assert capsys.readouterr().out.startswith("not yet: rank 0 of 2 raised ValueError: oops")
