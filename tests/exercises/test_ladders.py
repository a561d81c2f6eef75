"""Ladders: a rung calls the earlier ones, the learner's or the course's, and the verdict says which.  Faults:
a bug is judged by what it breaks."""

import pytest
import torch
from helpers.course.exercises import builds, in_ranks
from helpers.course.exercises.engine import Check
from helpers.course.exercises.reading import names_read
from tests.exercises import climbing
from tests.exercises.course import of_kind

pytestmark = pytest.mark.ranks

OWN_REDUCE = """
def reduce_to_owner(parameters, flat):
    import deepspeed.comm as comm
    import torch
    ranks = comm.get_world_size()
    gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
    gradients = torch.nn.functional.pad(gradients, (0, len(flat) - len(gradients)))
    comm.all_reduce(gradients)
    return gradients.chunk(ranks)[comm.get_rank()].float() / ranks
"""
SCATTER = """    mine = torch.empty_like(gradients.chunk(ranks)[0])
    comm.reduce_scatter_tensor(mine, gradients)
    return mine.float() / ranks
"""
OWN_REDUCE = OWN_REDUCE[: OWN_REDUCE.index("    comm.all_reduce")] + SCATTER
OWN_STEP = """
def zero_1_step(parameters, flat, master, optimizer):
    finish(flat, master, optimizer, reduce_to_owner(parameters, flat))
    for parameter in parameters:
        parameter.grad = None

def finish(*given):
    step_and_gather(*given)
"""
STUB = "def {}({}):\n    ..."


class Lesson:
    """A notebook's names, in which cells run."""

    def __init__(self, folder):
        self.names, self.folder, self.checks = {"__name__": "__main__"}, folder, climbing.checks()

    def write(self, source):
        file = self.folder / f"cell_{len(list(self.folder.iterdir()))}.py"  # where the source can be read
        file.write_text(source)
        exec(compile(source, str(file), "exec"), self.names)

    def check(self, name):
        self.names[name] = self.checks[name].check(self.names[name])
        return self.names[name]


@pytest.fixture
def lesson(tmp_path):
    return Lesson(tmp_path)


@pytest.fixture
def jobs(monkeypatch):
    """How many ranks each job had."""
    seen, run = [], in_ranks.run_once
    monkeypatch.setattr(
        in_ranks, "run_once", lambda function, ranks, *more: seen.append(ranks) or run(function, ranks, *more)
    )
    return seen


def test_a_rung_calls_the_learners_earlier_function_where_it_is_right_and_the_course_s_elsewhere(
    lesson, capsys
):
    lesson.write(OWN_REDUCE)
    own = lesson.check("reduce_to_owner")
    assert own.__name__ == "reduce_to_owner"
    lesson.write(STUB.format("step_and_gather", "flat, master, optimizer, gradient"))
    stub = lesson.names["step_and_gather"]
    lesson.write(OWN_STEP)
    capsys.readouterr()
    assert lesson.check("zero_1_step").__name__ == "zero_1_step"
    said = capsys.readouterr().out
    assert said == (
        "✓ correct in 2 and 4 ranks. It called the course's `step_and_gather`, since yours has not passed "
        "its check. The lesson uses your `zero_1_step`.\n"
    )
    assert lesson.names["reduce_to_owner"] is own
    assert lesson.names["step_and_gather"] is climbing.step_and_gather_solution  # what follows calls it too
    lesson.check("step_and_gather")
    assert lesson.checks["step_and_gather"].last is stub
    assert capsys.readouterr().out.startswith("○ not written yet")


def test_the_course_s_rung_calls_the_learners_right_functions(lesson, capsys):
    lesson.write(OWN_REDUCE)
    own = lesson.check("reduce_to_owner")
    lesson.write(STUB.format("zero_1_step", "parameters, flat, master, optimizer"))
    last = lesson.check("zero_1_step")
    assert last.__name__ == "zero_1_step_solution" and last.__globals__["reduce_to_owner"] is own
    assert climbing.zero_1_step_solution.__globals__["reduce_to_owner"] is climbing.reduce_to_owner_solution
    assert lesson.check("zero_1_step").__globals__["reduce_to_owner"] is own  # the cell runs again


def test_a_rung_that_was_written_anew_and_not_checked_is_not_trusted(lesson, capsys):
    lesson.write(OWN_REDUCE)
    lesson.check("reduce_to_owner")
    lesson.write(OWN_REDUCE)  # the same text once more is still the one that passed
    lesson.write(OWN_STEP)
    lesson.names["step_and_gather"] = climbing.step_and_gather_solution
    lesson.check("zero_1_step")
    assert "the course's `step_and_gather`," in capsys.readouterr().out
    lesson.write(OWN_REDUCE.replace("/ ranks", "* ranks"))
    lesson.check("zero_1_step")
    said = capsys.readouterr().out
    assert said.startswith("✓ correct") and "course's `reduce_to_owner` and `step_and_gather`" in said
    assert lesson.check("reduce_to_owner") is climbing.reduce_to_owner_solution
    assert capsys.readouterr().out.startswith("✗ not yet")


def test_a_right_answer_takes_a_job_for_each_number_of_ranks_and_a_wrong_one_one_more(lesson, jobs, capsys):
    lesson.write(OWN_REDUCE)
    lesson.check("reduce_to_owner")
    assert jobs == [2, 4]
    jobs.clear()
    bug = lesson.checks["undivided"]
    assert "divided twice" in bug.verdict(
        lambda parameters, flat: (
            climbing.reduce_to_owner(parameters, flat)
            / len(flat)
            * len(flat)
            / torch.distributed.get_world_size()
        )
    )
    assert jobs == [2, 2]


def test_what_the_learners_function_returned_is_there_for_a_picture_without_another_job(lesson, jobs, capsys):
    lesson.write(OWN_REDUCE)
    lesson.check("reduce_to_owner")
    jobs.clear()
    by_rank, whose = lesson.checks["reduce_to_owner"].found()
    assert whose == "your `reduce_to_owner`" and not jobs
    assert [values["the shard"].max().item() for values in by_rank] == [2.5] * 4
    lesson.write(STUB.format("reduce_to_owner", "parameters, flat"))
    lesson.check("reduce_to_owner")
    by_rank, whose = lesson.checks["reduce_to_owner"].found(ranks=2)
    assert whose == "the course's `reduce_to_owner`" and jobs == [2]
    assert [values["the shard"].max().item() for values in by_rank] == [1.5] * 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "* comm.get_world_size()",
            "✓ correct in 2 and 4 ranks: that is the bug. What it makes wrong: `the shard of the "
            "mean`. Every owner steps with the sum.",
        ),
        ("", "✗ not yet: nothing is broken in 2 ranks; your function is still right."),
        (
            ".double() * comm.get_world_size()",
            "✗ not yet: this breaks `the shard of the mean`, `its dtype`, but not as asked: rank 0 of 2: "
            "`its dtype` is 'torch.float64' where 'torch.float32' is what the bug gives.",
        ),
        ("/ comm.get_world_size()", "; divided twice."),
        ("* 2", "`the shard of the mean`, but not as asked: rank 0 of 4"),
    ],
)
def test_a_bug_is_judged_by_what_it_breaks(body, said, lesson, capsys):
    lesson.write(
        "def undivided(parameters, flat):\n    import deepspeed.comm as comm\n"
        f"    return reduce_to_owner(parameters, flat) {body}"
    )
    bug = lesson.check("undivided")
    assert said in capsys.readouterr().out
    assert bug.__name__ == ("undivided" if "✓" in said else "undivided_solution")


def test_a_mistake_that_hangs_is_left_out_and_its_thought_alone_is_lost(capsys):
    alone = "comm.reduce_scatter_tensor", "comm.get_rank() or comm.reduce_scatter_tensor"
    build = builds.Build(
        climbing.reduce_to_owner_solution, climbing.reduced, mistakes={"hangs": alone}, patience=5
    )
    assert build.verdict(climbing.undivided_solution).startswith(
        "not yet: rank 0 of 2: `the shard of the mean`[0] is "
    )


def test_what_a_solution_calls_of_its_lesson_is_a_rung():
    for name, build in of_kind(builds.Build).items():
        lesson = name.partition("-")[0]
        written = {check.name for other, check in of_kind(Check).items() if other.startswith(f"{lesson}-")}
        called = names_read(build.solution) & written - {build.name}
        assert called == {rung.name for rung in build.rungs}, name
