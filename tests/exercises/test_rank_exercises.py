"""Exercises in ranks: arguments are random, so that no constant passes, and each mistake is answered with its
own words."""

import random

import pytest
from helpers.course.exercises import in_ranks
from helpers.course.exercises import start_here as lesson_00
from helpers.course.exercises.builds import RankExercise
from helpers.tools.launcher.failures import RankError
from tests.exercises.course import of_kind, solutions

ALL = of_kind(RankExercise)
CASES = [(name, ranks) for name, exercise in ALL.items() for ranks in exercise.worlds]
MISTAKES = [
    (name, words, wrong) for name, exercise in ALL.items() for words, wrong in exercise.mistakes.items()
]
SOLUTIONS = solutions()


def given(exercise, ranks, seed=1):
    return exercise.inputs(ranks, random.Random(seed))


def reports(exercise, answer, arguments):
    """What ranks return that follow a rule in place of a function."""
    return [answer(rank, arguments if exercise.inputs else len(arguments)) for rank in range(len(arguments))]


@pytest.mark.parametrize("name, ranks", CASES)
def test_what_the_ranks_should_return_is_right(name, ranks):
    arguments = given(ALL[name], ranks)
    assert ALL[name].wrong(reports(ALL[name], ALL[name].expected, arguments), arguments) == ""


@pytest.mark.parametrize(
    "name, words, wrong", MISTAKES, ids=[f"{name}-{index}" for index, (name, _, _) in enumerate(MISTAKES)]
)
def test_every_known_mistake_is_answered_with_its_own_words(name, words, wrong):
    arguments = given(ALL[name], 4)
    verdict = ALL[name].wrong(reports(ALL[name], wrong, arguments), arguments)
    assert verdict.startswith("not yet: rank ") and verdict.endswith(words)


@pytest.mark.parametrize("name", [name for name, exercise in ALL.items() if exercise.inputs])
def test_what_is_right_once_is_wrong_the_next_time(name):
    exercise = ALL[name]
    learnt = reports(exercise, exercise.expected, given(exercise, 4, seed=1))
    assert exercise.wrong(learnt, given(exercise, 4, seed=2))
    assert len(set(exercise.worlds)) >= 2


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda right: None, "rank 1 of 2 returned nothing: did you forget `return`?"),
        (str, "a plain number is asked for"),
        (lambda right: [right], "a plain number is asked for"),
        (lambda right: right + 1, "rank 1 of 2 returned "),
    ],
)
def test_other_wrong_answers_of_a_rank(wrong, words):
    exercise = lesson_00.mean_of_squares
    arguments = given(exercise, 2)
    right = exercise.expected(0, arguments)
    assert words in exercise.wrong([right, wrong(right)], arguments)


def test_short_lists_are_shown_with_as_many_digits_as_make_them_read_differently():
    exercise = RankExercise(
        solution=None, inputs=None, expected=lambda rank, given: [1.0000002, 2], tolerance=1e-9
    )
    assert (
        exercise.wrong([[1.0000001, 2]], None)
        == "not yet: rank 0 of 1 returned [1.0000001, 2] where [1.0000002, 2] is right"
    )


@pytest.mark.parametrize(
    "answer, words",
    [(16, "needs your function itself"), (lambda: 2.5, "takes (), the check calls it with (value)")],
)
def test_what_cannot_be_run_is_a_verdict(answer, words, capsys):
    lesson_00.mean_of_squares.check(answer)
    assert words in capsys.readouterr().out


def test_a_stub_starts_no_rank(monkeypatch, capsys):
    def stub(value):
        import deepspeed

        deepspeed.init_distributed()
        ...

    monkeypatch.setattr("helpers.course.exercises.builds.run_patiently", None)
    lesson_00.mean_of_squares.check(stub)
    assert capsys.readouterr().out.startswith(
        "○ not written yet. The lesson uses the course's `mean_of_squares`."
    )


def test_a_job_that_looks_hung_on_a_busy_machine_gets_more_time(monkeypatch):
    given_seconds = []

    def launch(*arguments, timeout, **more):
        given_seconds.append(timeout)
        raise RankError("ranks 0, 1 of 2 hung in all_reduce after 10 s\n  rank 0:", 0, [])

    monkeypatch.setattr("helpers.tools.launcher.jobs.launch", launch)
    for crowd, seconds in ((1.0, [10]), (2.0, [10, 40]), (50.0, [10, 40])):
        given_seconds.clear()
        monkeypatch.setattr(in_ranks, "crowding", lambda crowd=crowd: crowd)
        with pytest.raises(RankError):
            in_ranks.run_patiently(None, 2, {})
        assert given_seconds == seconds


def test_an_error_is_not_tried_again(monkeypatch):
    def launch(*arguments, **more):
        calls.append(1)
        raise RankError("rank 0 of 2 raised ValueError: it hung", 0, [])

    calls = []
    monkeypatch.setattr("helpers.tools.launcher.jobs.launch", launch)
    monkeypatch.setattr(in_ranks, "crowding", lambda: 50)
    with pytest.raises(RankError):
        in_ranks.run_patiently(None, 2, {})
    assert calls == [1]
