"""Exercises and builds in real ranks: the lessons' own solutions are right, and what goes wrong there is a
verdict."""

import os
import random
import sys

import pytest
import torch
from helpers.course.exercises import start_here as lesson_00
from helpers.course.exercises.builds import Build, matching, with_advice
from helpers.course.exercises.engine import Check, before_running, reading_note
from helpers.course.exercises.formulas import Exercise
from helpers.course.exercises.in_ranks import Judged, names_apart
from helpers.course.exercises.pipeline_parallelism import Schedule
from helpers.course.exercises.reading import names_of
from helpers.tools.launcher.jobs import LaunchError
from tests.exercises.averaging import half, in_place, make, mean_over_ranks_solution, total, trial
from tests.exercises.course import of_kind, right_answers, tried

pytestmark = pytest.mark.ranks

BUILDS = of_kind(Build)


def test_a_rank_that_fails_is_a_verdict_with_the_learners_lines_only(capsys):
    def fails(value):
        raise ValueError("oops")

    lesson_00.mean_of_squares.check(fails)
    said = capsys.readouterr().out
    assert (
        said.startswith("✗ not yet: rank 0 of 2 raised ValueError: oops\n")
        and 'raise ValueError("oops")' in said
    )
    assert "helpers/" not in said and "function(**" not in said


def test_a_constant_does_not_pass_in_ranks(capsys):
    lesson_00.mean_of_squares.check(lambda value: 2.5)
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet: rank 0 of 2: `what this rank returned` is 2.5 where ")


def test_a_right_answer_is_returned_and_what_follows_uses_it(capsys):
    assert make().check(in_place) is in_place
    assert (
        capsys.readouterr().out == "✓ correct in 2 and 4 ranks: summed, then divided. "
        "The lesson uses your `mean_over_ranks`.\n"
    )


def test_a_wrong_answer_names_rank_value_place_and_both_numbers_and_the_mistake(capsys):
    def mine(tensor, ranks):
        return total(tensor, ranks)

    assert make().check(mine) is mean_over_ranks_solution
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet: rank 0 of 2: `mean`[0, 0] is ") and said.endswith(
        " is right; that is the sum. The lesson uses the course's `mean_over_ranks`.\n"
    )


def test_what_is_right_for_two_ranks_only_is_found_with_four(capsys):
    assert make().check(half) is mean_over_ranks_solution
    assert "rank 0 of 4: `mean`[0, 0] is " in capsys.readouterr().out


def test_inputs_are_new_at_every_check(capsys):
    seen = set()
    for _ in range(2):
        make().check(total)
        seen.add(capsys.readouterr().out)
    assert len(seen) == 2


def test_an_exception_a_wrong_type_and_a_closed_process_group_are_verdicts(capsys):
    def raises(tensor, ranks):
        raise ValueError("oops")

    def a_list(tensor, ranks):
        return tensor.tolist()

    def closes(tensor, ranks):
        import torch.distributed as dist

        dist.destroy_process_group()
        return tensor

    class Anything(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), named=None):
            return True

    for answer, words in (
        (raises, "rank 0 of 2 raised ValueError: oops"),
        (a_list, "where a tensor is right"),
        (closes, "of 2 raised"),
        (
            lambda tensor, ranks: tensor.as_subclass(Anything),
            "a tensor of the class Anything where",
        ),
        (lambda tensor, ranks: torch.empty(2, 3, device="meta"), "`mean` is a tensor on the meta device"),
        (lambda tensor, ranks: tensor * float("nan"), "`mean`[0, 0] is nan where"),
        (lambda tensor, ranks: (part for part in tensor), "`mean` is a generator where a tensor is right"),
        (lambda tensor, ranks: sys.exit("gone"), "rank 0 of 2 raised SystemExit: gone"),
        (lambda tensor, ranks: os._exit(3), "of 2 left with exit status 3"),
    ):
        assert make().check(answer) is mean_over_ranks_solution
        said = capsys.readouterr().out
        assert words in said and said.endswith("The lesson uses the course's `mean_over_ranks`.\n")


def test_a_hang_is_a_verdict_that_names_the_rank(capsys):
    def one_only(tensor, ranks):
        import deepspeed.comm as comm

        if comm.get_rank() == 1:
            comm.all_reduce(tensor)
        return tensor

    assert make(patience=5).check(one_only) is mean_over_ranks_solution
    said = capsys.readouterr().out
    assert "rank 1 of 2 hung in all_reduce, which rank 0 never entered" in said


def test_a_loop_that_never_ends_is_known_by_the_processor_s_time_and_named_with_its_line(capsys):
    def loops(tensor, ranks):
        while ranks:
            ranks += 1

    def loops_alone(value):
        import deepspeed
        import deepspeed.comm as comm

        deepspeed.init_distributed()
        while comm.get_rank() == 1:
            value += 1
        return value

    for exercise, answer, line in (
        (make(), lambda tensor, ranks: loops(tensor, ranks) or tensor, "ranks += 1|while ranks:"),
        (lesson_00.mean_of_squares, loops_alone, "value += 1|while comm.get_rank"),
    ):
        exercise.check(answer)
        said = capsys.readouterr().out
        assert "of 2 was still computing after 2 s: does a loop never end?" in said
        assert any(part in said for part in line.split("|")) and "helpers/" not in said


def test_a_class_may_be_what_is_written():
    class Mean:
        def __init__(self, ranks):
            self.ranks = ranks

        def of(self, tensor):
            return in_place(tensor, self.ranks)

    class Mine(Mean):
        def __init__(self, ranks):
            super().__init__(ranks)

    def use(see, mean):
        import torch

        see("mean", mean(see.ranks).of(torch.randn(3)))

    assert Build(Mean, use).check(Mine) is Mine


def test_a_fault_of_the_courses_own_function_is_not_hidden():
    with pytest.raises(LaunchError, match="CourseFault"):
        Build(lambda tensor, ranks: 1 / 0, trial).check(in_place)


def test_a_type_error_of_the_check_is_not_taken_for_the_learners(monkeypatch):
    def broken(*arguments):
        raise TypeError("the check is broken")

    monkeypatch.setattr("helpers.course.exercises.builds.run_patiently", broken)
    with pytest.raises(TypeError, match="the check is broken"):
        make().check(in_place)


def every_mistake(build):
    """{words: function}; each mistake that is written as changes of the solution must fit it."""
    mistakes = build.mistaken()
    assert list(mistakes) == list(build.mistakes)
    return mistakes


SCHEDULES = [name for name, build in BUILDS.items() if isinstance(build, Schedule)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_lessons_solution_of_a_schedule_is_right(name):
    assert BUILDS[name].verdict(BUILDS[name].solution).startswith("correct in ")


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_known_mistake_of_a_schedule_is_answered_with_its_own_words(name):
    for words, wrong in every_mistake(BUILDS[name]).items():
        assert BUILDS[name].verdict(wrong).endswith(words)


@pytest.mark.parametrize("name", [name for name in BUILDS if name not in SCHEDULES])
def test_a_builds_solution_is_right_and_every_known_mistake_is_found_and_answered_with_its_own_words(name):
    """And right answers of other builds are right.  All in one job for each number of ranks: a check of one
    after the other would take ten times as long.

    No two mistakes are twins: the words of the first would answer both.  A whole check of each solution comes
    after its lesson's last cell.
    """
    build, solution = BUILDS[name], BUILDS[name].solution
    mistakes, rights = every_mistake(build), list(right_answers(name).values())
    unanswered = dict(mistakes)
    for answer in (solution, *rights, *unanswered.values()):
        assert not before_running(answer, names_of(solution), solution, "code", by_position=True)
        assert not with_advice("", answer) and not reading_note(answer, solution)
    always = build.always()
    for ranks in build.worlds:
        functions = [solution, solution, *always, *mistakes.values(), *rights]
        by_rank = tried(build, functions, ranks, seed=random.randrange(2**31))
        assert all(values[0] and values[1] for values in by_rank), "the course's answer fails"
        assert not build.wrong(judged(build, by_rank, 1))
        for at, words in enumerate(right_answers(name), len(functions) - len(rights)):
            assert all(values[at] is not None for values in by_rank), f"right, and fails: {words}"
            assert not build.wrong(judged(build, by_rank, at)), f"right, and refused: {words}"
        for at, words in enumerate(mistakes, 2 + len(always)):
            assert all(values[at] is not None for values in by_rank), f"fails, and is not answered: {words}"
            found = judged(build, by_rank, at)
            if words in unanswered and build.wrong(found):
                beside = [rank._replace(apart=rank.apart[len(always) :]) for rank in found]
                told = matching(mistakes, beside)
                assert told == f"; {words}", "twins: the trial cannot tell these two mistakes apart"
                del unanswered[words]
    assert not unanswered


def judged(build, by_rank, at):
    """What a check has found where the learner's function is that with this number."""
    return [
        Judged(right, values[at], [apart(values[at], one, build.tolerance) for one in mistakes], None)
        for values in by_rank
        for right, _, *mistakes in [values]
    ]


def apart(got, other, tolerance):
    """The names under which two differ; None where one failed."""
    return None if got is None or other is None else names_apart(got, other, tolerance)


OTHERS = [name for name, check in of_kind(Check).items() if not isinstance(check, (Build, Exercise))]


@pytest.mark.parametrize("name", [name for name in SCHEDULES + OTHERS if right_answers(name)])
def test_right_answers_of_other_builds_pass_checks_of_other_kinds(name):
    for words, answer in right_answers(name).items():
        said = of_kind(Check)[name].verdict(answer)
        assert said.startswith("correct"), f"right, and refused: {words}: {said}"
