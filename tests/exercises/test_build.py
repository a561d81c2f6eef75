"""Build: the learner's function in real ranks, beside the course's; what comes back is what the lesson goes
on with."""

from types import FunctionType

import pytest
import torch
from helpers.course.exercises.builds import Build
from helpers.course.exercises.formulas import Exercise
from tests.exercises.averaging import make, mean_over_ranks_solution, stub, total, trial


def test_a_stub_is_no_error_and_the_course_goes_on_with_its_own(capsys):
    build = make()
    for _ in range(2):  # and the same words when the check's cell runs again, with what it returned
        assert build.check(stub) is mean_over_ranks_solution
        assert build.check(mean_over_ranks_solution) is mean_over_ranks_solution
    assert (
        capsys.readouterr().out == 4 * "○ not written yet. The lesson uses the course's `mean_over_ranks`.\n"
    )


def test_a_solution_that_a_folded_cell_has_defined_is_the_course_s(capsys, monkeypatch):
    monkeypatch.setattr(Build, "in_worlds", lambda build, answer: "correct in 2 and 4 ranks")
    build, folded = make(), FunctionType(mean_over_ranks_solution.__code__, globals())
    for answer, said in (
        (folded, "correct in 2 and 4 ranks"),
        (stub, "not written"),
        (folded, "not written"),
    ):
        assert build.check(answer) is mean_over_ranks_solution
        shown = capsys.readouterr().out
        assert said in shown and "he lesson uses the course's `mean_over_ranks`" in shown


def forgets(tensor, ranks):
    tensor = tensor / ranks


@pytest.mark.parametrize(
    "answer, words",
    [
        (16, "the check needs your function itself, not 16."),
        (lambda a, ranks: a, "your function takes (a, ranks), the check calls it with (tensor, ranks)."),
        (forgets, "your function returns nothing: did you forget `return`?"),
    ],
)
def test_what_need_not_be_run_is_said_at_once(answer, words, capsys, monkeypatch):
    monkeypatch.setattr("helpers.course.exercises.builds.run_patiently", None)
    assert make().check(answer) is mean_over_ranks_solution
    assert capsys.readouterr().out == f"✗ not yet: {words} The lesson uses the course's `mean_over_ranks`.\n"


def twice_solution(ranks):
    return 2 * ranks


@pytest.mark.parametrize("slip", [0, None, [], torch.ones(2)], ids=repr)
def test_a_value_in_the_place_of_a_function_earns_nothing_when_the_check_runs_again(slip, capsys):
    build, formula = make(), Exercise(twice_solution, ({"ranks": 3},))
    for exercise in (build, formula):
        for answer in (slip, exercise.solution):
            assert exercise.check(answer) is exercise.solution
        first, again = capsys.readouterr().out.splitlines()
        assert first == again and first.startswith("✗ not yet: the check needs your function itself, not ")


@pytest.mark.ranks
def test_a_mistake_is_an_edit_of_the_solution_that_the_check_is_given(capsys):
    build = Build(mean_over_ranks_solution, trial, mistakes={"the sum": ("tensor / ranks", "tensor")})
    build.check(total)
    assert " is right; the sum. The lesson uses " in capsys.readouterr().out


def test_one_world_size_is_too_few():
    with pytest.raises(ValueError, match="at least two world sizes"):
        make(worlds=(2,))
