"""The checks of formulas say what is wrong, in words, for the answers that people really give."""

import pytest
from helpers.course.exercises.editing import edit
from helpers.course.exercises.engine import Check
from helpers.course.exercises.faults import Fault
from helpers.course.exercises.formulas import Exercise
from tests.exercises.course import of_kind, right_answers, solutions

ALL = of_kind(Exercise)
SOLUTIONS = solutions()


@pytest.mark.parametrize("name", ALL)
def test_its_solution_is_correct_and_each_mistake_is_answered_with_its_own_words(name):
    """So no two mistakes are twins: the words of the first would answer both."""
    exercise = ALL[name]
    assert exercise.verdict(exercise.reference).startswith("correct for ")
    for answer in (SOLUTIONS[name], *right_answers(name).values()):
        assert exercise.verdict(answer).startswith("correct for ")
    for words, changes in exercise.mistakes.items():
        verdict = exercise.verdict(edit(exercise.solution, *changes))
        assert verdict.startswith("not yet: for "), words
        assert verdict.endswith(f" is right; {words}"), "twins: no case tells these two mistakes apart"


PORTED = ("00", "01", "02", "03", "07")  # lessons whose data file holds right answers


@pytest.mark.parametrize("name", [name for name in SOLUTIONS if name.partition("-")[0] in PORTED])
def test_right_answers_of_other_builds_are_at_hand(name):
    assert len(right_answers(name)) >= 3 or isinstance(of_kind(Check)[name], Fault)


def test_praise_says_why_in_a_sentence_and_not_the_formula():
    for name, exercise in ALL.items():
        assert len(exercise.praise.split()) >= 5, name
        assert not any(sign in exercise.praise for sign in ("+", "*", " = ")), name


def no_return(ranks):
    result = ranks + 1  # noqa: F841


def prints(ranks):
    print(ranks)


def sometimes(ranks):
    if ranks > 100:
        return 1


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda ranks: None, "not written yet: put your formula in the place of the dots"),
        (lambda ranks: ..., "not written yet: put your formula in the place of the dots"),
        (no_return, "not yet: your function returns nothing: did you forget `return`?"),
        (prints, "not yet: your function returns nothing: did you forget `return`?"),
        (sometimes, "not yet: your function returns nothing for ranks=4"),
        (
            lambda ranks: 1 / 0,
            "not yet: your function raised ZeroDivisionError for ranks=4: division by zero",
        ),
        (lambda: 1, "not yet: your function takes (), the check calls it with (ranks)"),
        (16, "not yet: the check needs your function itself, not 16"),
        (lambda ranks: "6", "not yet: your function returns '6' for ranks=4, where a number is asked for"),
        (lambda ranks: [6], "not yet: your function returns [6] for ranks=4, where a number is asked for"),
        (lambda ranks: -1, "not yet: for ranks=4 your function gives -1 where 6 is right"),
    ],
)
def test_other_wrong_answers_raise_nothing(answer, words):
    assert ALL["00-sum_of_ranks"].verdict(answer) == words


def test_a_text_that_is_asked_for_is_told_from_another_and_from_a_number():
    exercise = Exercise(reference=lambda stage: f"stage {stage}", cases=({"stage": 3},))
    assert exercise.verdict(lambda stage: "none").endswith(
        "your function gives 'none' where 'stage 3' is right"
    )
    assert exercise.verdict(lambda stage: 3).endswith("returns 3 for stage=3, where a str is asked for")


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


def third(size):
    return size / 3


def test_an_answer_that_counts_things_may_be_rounded_down():
    mistakes = {"by three": ("/ 3", "/ 2.03")}
    counts = {"reference": third, "cases": ({"size": 100},), "mistakes": mistakes}
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


def three_solution():
    return 3


def test_check_shows_the_verdict_with_its_mark_and_hands_on_what_is_right(capsys):
    exercise = Exercise(reference=three_solution, cases=({},), praise="so it is")
    for answer, handed_on in (
        (right := lambda: 3, right),
        (lambda: 4, three_solution),
        (lambda: ..., three_solution),
    ):
        assert exercise.check(answer) is handed_on
    assert [line[:12] for line in capsys.readouterr().out.splitlines()] == [
        "✓ correct fo",
        "✗ not yet: y",
        "○ not writte",
    ]
