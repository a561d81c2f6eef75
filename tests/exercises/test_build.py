"""Build: the learner's function in real ranks, beside the course's; what comes back is what the lesson goes
on with."""

from types import FunctionType

import pytest
import torch
from helpers.course.exercises.engine import Build, Exercise
from tests.exercises.averaging import make, mean_solution, stub, total, trial


def test_a_stub_is_no_error_and_the_course_goes_on_with_its_own(capsys):
    build = make()
    for _ in range(2):  # and the same words when the check's cell runs again, with what it returned
        assert build.check(stub, mean_solution) is mean_solution
        assert build.check(mean_solution, mean_solution) is mean_solution
    assert (
        capsys.readouterr().out == 4 * "○ not written yet: what follows uses the course's `mean_over_ranks`\n"
    )


def test_a_solution_that_was_defined_anew_is_still_the_course_s(capsys, monkeypatch):
    monkeypatch.setattr(
        "helpers.course.exercises.engine.in_worlds", lambda worlds, run, praise: "correct in 2 and 4 ranks"
    )
    build, anew = make(), FunctionType(mean_solution.__code__, globals(), mean_solution.__name__)
    assert build.check(mean_solution, anew) is anew
    assert capsys.readouterr().out.endswith("What follows uses the course's `mean_over_ranks`.\n")
    assert build.check(stub, anew) is anew
    assert build.check(mean_solution, anew) is anew
    assert (
        capsys.readouterr().out == 2 * "○ not written yet: what follows uses the course's `mean_over_ranks`\n"
    )


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
    monkeypatch.setattr("helpers.course.exercises.engine.run_patiently", None)
    assert make().check(answer, mean_solution) is mean_solution
    assert (
        capsys.readouterr().out == f"✗ not yet: {words} What follows uses the course's `mean_over_ranks`.\n"
    )


@pytest.mark.parametrize("slip", [0, None, [], torch.ones(2)], ids=repr)
def test_a_value_in_the_place_of_a_function_earns_nothing_when_the_check_runs_again(slip, capsys):
    build, formula = make(), Exercise(lambda ranks: 2 * ranks, ({"ranks": 3},))
    for exercise in (build, formula):
        assert exercise.check(slip, mean_solution) is mean_solution
        assert exercise.check(mean_solution, mean_solution) is mean_solution
        first, again = capsys.readouterr().out.splitlines()
        assert first == again and first.startswith("✗ not yet: the check needs your function itself, not ")


@pytest.mark.ranks
def test_a_mistake_is_an_edit_of_the_solution_that_the_check_is_given(capsys):
    build = Build("mean", trial, mistakes={"no more": ("* 0", ""), "the sum": ("tensor / ranks", "tensor")})
    assert list(build.mistaken(mean_solution)) == ["the sum"]
    build.check(total, mean_solution)
    assert " is right; the sum. What follows " in capsys.readouterr().out


def test_one_world_size_is_too_few():
    with pytest.raises(ValueError, match="at least two world sizes"):
        make(worlds=(2,))
