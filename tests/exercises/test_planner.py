"""The learner's planner: a file that grows by functions, and never loses what the learner wrote."""

import runpy

import pytest
from helpers.course.exercises.solutions.training_memory import in_the_step
from helpers import paths
from helpers.course.exercises import planner
from helpers.course.exercises.formulas import Exercise
from helpers.tools import theory

STATES = """
def per_parameter(stage, ranks):
    return sum(theory.ideal_bytes(1, ranks, stage).values())


def states(plan):
    return per_parameter(plan.stage, plan.replicas) * plan.parameters
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(paths, "WORK", tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def cell(folder, source, name="states"):
    """A function as a cell of a notebook defines it."""
    file = folder.parent / f"cell_{len(list(folder.parent.iterdir()))}.py"
    file.write_text(source)
    names = {"__name__": "__main__", "theory": theory}
    exec(compile(source, str(file), "exec"), names)
    return names[name]


def in_file(work):
    return runpy.run_path(str(work / planner.NAME))


def test_a_function_comes_with_what_it_calls_and_imports_and_works_in_the_file(work):
    states = cell(work, STATES)
    assert planner.keep(states) == "`states` is in my_planner.py."
    text = (work / planner.NAME).read_text()
    assert text.count("def ") == 2 and "import helpers.tools.theory as theory\n" in text
    plan = next(planner.recorded_trainings()).plan
    assert in_file(work)["states"](plan) == states(plan)
    assert (
        planner.keep(states) == "`states` is in my_planner.py." and (work / planner.NAME).read_text() == text
    )


def test_a_planner_whose_rungs_were_skipped_has_the_course_s(work):
    peak = cell(work, "def peak(plan):\n    return 1 + in_the_step(plan)", "peak")
    peak.__globals__["in_the_step"] = in_the_step  # as in a notebook that goes on with the course's
    planner.keep(peak)
    found, plan = in_file(work), next(planner.recorded_trainings()).plan
    assert found["peak"](plan) == 1 + found["in_the_step"](plan) > 16 * plan.parameters


def test_the_given_peak_calls_the_learner_s_terms_by_position(work):
    planner.keep(cell(work, "def in_the_step(way):\n    return 1e15", "in_the_step"))
    found, plan = in_file(work), next(planner.recorded_trainings()).plan
    assert found["peak"](plan) == 1e15 > found["at_the_loss"](plan)
    assert " % off" not in planner.score("peak") and "% off in the middle" in planner.score("peak")
    names = {"in_the_step": found["in_the_step"]}
    assert planner.complete(names) == f"yours: 1 of {len(planner.TERMS)}" and names["at_the_loss"](plan) > 0
    assert "it does not fit" in planner.verdict(names["peak"]) and "it fits" in planner.verdict(lambda _: 1)


def test_what_a_step_sends_is_a_term_too(work):
    planner.keep(cell(work, "def sent(stage, micro_batches, to_owner):\n    return 17", "sent"))
    assert in_file(work)["sent"](2, 4, True) == 17
    (work / planner.NAME).unlink()
    planner.keep(cell(work, STATES))
    assert in_file(work)["sent"](2, 4, True) == 5


def test_a_newer_answer_replaces_what_the_check_wrote_and_nothing_else(work):
    planner.keep(cell(work, STATES))
    planner.keep(cell(work, "def peak(plan):\n    return 1", "peak"))
    planner.keep(cell(work, "def states(plan):\n    return 2"))
    kept = in_file(work)
    assert kept["states"](None) == 2 and kept["peak"](None) == 1 and "per_parameter" in kept


def test_what_the_learner_edited_stays_and_is_told(work):
    planner.keep(cell(work, "def states(plan):\n    return 1"))
    file = work / planner.NAME
    file.write_text("# mine\n" + file.read_text().replace("return 1", "return 7  # better"))
    said = planner.keep(cell(work, "def states(plan):\n    return 2"))
    assert "your own `states` there stayed as you wrote it" in said
    assert in_file(work)["states"](None) == 7 and file.read_text().startswith("# mine\n")


def test_a_file_that_python_cannot_read_stays_as_it_is(work):
    (work / planner.NAME).write_text("def states(plan:\n")
    said = planner.keep(cell(work, "def states(plan):\n    return 2"))
    assert "my_planner.py has an error in line 1" in said
    assert (work / planner.NAME).read_text() == "def states(plan:\n"


def test_a_function_that_reads_the_notebook_s_numbers_is_not_kept(work):
    said = planner.keep(cell(work, "share = 3\n\n\ndef states(plan):\n    return share"))
    assert "since it reads `share` of the notebook" in said and not (work / planner.NAME).exists()


def test_nothing_is_written_outside_of_work(work, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert planner.keep(cell(work, "def states(plan):\n    return 2")) == ""
    assert not list(work.iterdir())


def test_a_planner_is_scored_in_trainings_that_it_has_not_seen(work):
    planner.keep(cell(work, STATES))
    unseen = list(planner.recorded_trainings()), list(planner.rehearsed_trainings())
    states = [[one for one in several if "states" in one.right] for several in unseen]
    counts = f"{len(states[0])} recorded and {len(states[1])} rehearsed trainings"
    assert min(map(len, states)) > 10
    said = planner.score("states")
    assert said.startswith(f"`states` in {counts}: 0.0% off in the middle, ") and " at most (" in said
    right = {one.plan: one.right["peak"] for one in sum(unseen, [])}
    assert "0.0% off in the middle, 0.0% at most" in planner.score("peak", lambda plan: right[plan])
    assert "50.0% off in the middle, 50.0% at most" in planner.score("peak", lambda plan: right[plan] / 2)
    assert planner.score("peak", lambda plan: plan.nothing).startswith("`peak` raised AttributeError")


def test_a_check_keeps_a_term_that_is_right(work, capsys):
    right = cell(work, STATES)
    plan = next(planner.recorded_trainings()).plan
    check = Exercise(right, ({"plan": plan},), then=planner.keep, solution=right)
    check.check(cell(work, "def states(plan):\n    return 2"))
    assert not (work / planner.NAME).exists()
    check.check(cell(work, STATES))
    assert "· `states` is in my_planner.py." in capsys.readouterr().out


def test_a_term_that_is_asked_of_some_plans_is_scored_in_these_alone(work):
    def alone(plan):
        return plan.gpus == 1

    right = {one.plan: one.right["peak"] for one in planner.trainings("peak", alone)}
    said = planner.score("peak", lambda plan: right[plan], alone)
    assert all(plan.gpus == 1 for plan in right) and "0.0% off in the middle, 0.0% at most" in said
