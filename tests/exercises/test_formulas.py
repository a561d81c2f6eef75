"""The checks of formulas say what is wrong, in words, for the answers that people really give."""

import pytest
from helpers.course.exercises.comparing import kind
from helpers.course.exercises.engine import Exercise
from tests.exercises.course import of_kind, solutions

ALL = of_kind(Exercise)
MISTAKES = [
    (name, words, wrong) for name, exercise in ALL.items() for words, wrong in exercise.mistakes.items()
]
SOLUTIONS = solutions()


@pytest.mark.parametrize("name", ALL)
def test_the_reference_and_the_lessons_solution_are_correct(name):
    assert ALL[name].verdict(ALL[name].reference).startswith("correct for ")
    assert ALL[name].verdict(SOLUTIONS[name]).startswith("correct for ")


@pytest.mark.parametrize("name", ALL)
def test_praise_says_why_in_a_sentence_and_not_the_formula(name):
    assert len(ALL[name].praise.split()) >= 5 and not any(
        sign in ALL[name].praise for sign in ("+", "*", " = ")
    )


@pytest.mark.parametrize(
    "name, words, wrong", MISTAKES, ids=[f"{name}-{index}" for index, (name, _, _) in enumerate(MISTAKES)]
)
def test_every_known_mistake_is_answered_with_its_own_words(name, words, wrong):
    verdict = ALL[name].verdict(wrong)
    assert verdict.startswith("not yet: for ") and verdict.endswith(words)


def no_return(**case):
    result = sum(case.values())  # noqa: F841


def prints(**case):
    print(sum(case.values()))


def sometimes(**case):
    if not case:
        return 1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda **case: None, "not written yet"),
        (lambda **case: ..., "not written yet"),
        (no_return, "did you forget `return`?"),
        (prints, "did you forget `return`?"),
        (sometimes, "returns nothing for "),
        (lambda **case: 1 / 0, "raised ZeroDivisionError"),
        (lambda: 1, "your function takes (), the check calls it with ("),
        (16, "needs your function itself"),
    ],
)
def test_other_wrong_answers_raise_nothing(name, answer, words):
    verdict = ALL[name].verdict(answer)
    assert verdict.startswith(("not yet", "not written yet")) and words in verdict


@pytest.mark.parametrize("name", ALL)
def test_an_answer_of_another_kind_and_another_value_are_told_apart(name):
    right = ALL[name].reference(**ALL[name].cases[0])
    wrong, of_another_kind = ("nothing", -1) if isinstance(right, str) else (-1, "many")
    assert f"where a {kind(right)} is asked for" in ALL[name].verdict(lambda **case: of_another_kind)
    assert " is right" in ALL[name].verdict(lambda **case: wrong)


def test_a_renamed_parameter_is_said_in_words():
    exercise = Exercise(
        reference=lambda parameters, ranks: parameters / ranks, cases=({"parameters": 8, "ranks": 2},)
    )
    assert (
        exercise.verdict(lambda a, b: a / b)
        == "not yet: your function takes (a, b), the check calls it with (parameters, ranks)"
    )
    assert exercise.verdict(lambda ranks, parameters, more=1: parameters / ranks).startswith(
        "correct for 1 case"
    )


def test_an_answer_that_counts_things_may_be_rounded_down():
    counts = {
        "reference": lambda size: size / 3,
        "cases": ({"size": 100},),
        "mistakes": {"by three": lambda size: size / 2.03},
    }
    assert Exercise(**counts, whole=True).verdict(lambda size: size // 3).startswith("correct for 1 case")
    assert Exercise(**counts, whole=True).verdict(lambda size: size / 3).startswith("correct for 1 case")
    assert Exercise(**counts, whole=True).verdict(lambda size: int(size / 2.03)).endswith("by three")
    assert Exercise(**counts).verdict(lambda size: size // 3).startswith("not yet")


def test_byte_counts_are_shown_whole_and_answers_that_differ_read_differently():
    exercise = Exercise(reference=lambda size: 1376256.0, cases=({"size": 24e9},))
    said = "not yet: for size=24,000,000,000 your function gives 1,376,257 where 1,376,256 is right"
    assert exercise.verdict(lambda size: 1376257) == said


def test_a_fault_of_the_check_itself_is_not_hidden():
    with pytest.raises(KeyError):
        Exercise(reference=lambda: {}["missing"], cases=({},)).verdict(lambda: 1)


def test_check_shows_the_verdict_with_its_mark_and_returns_nothing(capsys):
    exercise = Exercise(reference=lambda: 3, cases=({},), praise="so it is")
    assert exercise.check(lambda: 3) is None
    exercise.check(lambda: 4)
    exercise.check(lambda: ...)
    assert [line[:12] for line in capsys.readouterr().out.splitlines()] == [
        "✓ correct fo",
        "✗ not yet: f",
        "○ not writte",
    ]
