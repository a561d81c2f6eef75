"""Lesson 00: a deadlock is told from other failures, notes of a job that hangs, and a script of one's own."""

import json
import time

import pytest
from helpers.course.exercises.solutions.start_here import mean_over_ranks
from helpers import under_torchrun, who_entered
from helpers.course.exercises import start_here as lesson_00
from helpers.paths import NOTEBOOKS
from helpers.tools.launcher.failures import RankError

pytestmark = pytest.mark.ranks


def everybody(value):
    return mean_over_ranks(value)


def the_last(value):
    import deepspeed.comm as comm

    if comm.get_rank() == comm.get_world_size() - 1:
        return mean_over_ranks(value)


def sleeps(value):
    import deepspeed.comm as comm

    if comm.get_rank() < comm.get_world_size() - 1:
        time.sleep(60)
    return value


def breaks(value):
    return value["loss"]


def breaks_with_others(value):
    import deepspeed.comm as comm

    if comm.get_world_size() > 1:
        raise ValueError("too many")
    return value


def a_barrier(value):
    import deepspeed.comm as comm

    return comm.barrier() if comm.get_rank() < 1 else None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (everybody, "✗ not yet: all 2 ranks returned, and nobody waits"),
        (the_last, "✗ not yet: rank 0 alone should wait, in a collective: rank 1 of 2 hung in all_reduce"),
        (breaks, "✗ not yet: with one rank this fails: rank 0 of 1 raised TypeError"),
        (breaks_with_others, "✗ not yet: this fails, and does not hang: rank 0 of 2 raised ValueError"),
        (a_barrier, "✗ not yet: a rank alone, which has nobody to wait for, should get what"),
        (lambda: 1, "✗ not yet: your function takes (), the check calls it with (value)"),
    ],
)
def test_what_does_not_leave_rank_0_waiting_is_no_such_deadlock(answer, words, capsys):
    assert lesson_00.log_alone.check(answer) is lesson_00.log_alone.solution
    assert capsys.readouterr().out.startswith(words)


def test_a_rank_that_sleeps_waits_in_no_collective(monkeypatch):
    monkeypatch.setattr("helpers.course.exercises.failing.PATIENCE", (10.0,))
    said = lesson_00.log_alone.verdict(sleeps)
    assert (
        said.startswith("not yet: rank 0 alone should wait, in a collective") and "in no collective" in said
    )


def two_sums():
    import deepspeed.comm as comm
    import torch

    comm.init_distributed()
    for _ in range(2):
        comm.all_reduce(torch.ones(1))


def test_who_entered_what_is_known_of_a_job_that_raises_or_ends(capsys):
    raised = "rank 0 all_reduce in nan, then raised ValueError; rank 1 all_reduce in nan, all_reduce"
    assert raised in who_entered(lesson_00.JOBS["nan"], 4, "A nan", timeout=60).sentence
    said = capsys.readouterr().out
    assert said.startswith("RankError: rank 0 of 4 raised ValueError: ") and said.count("\n") == 1
    assert said.endswith("add up to [1.25, 2.5, nan, nan]\n")
    ended = "rank 0 all_reduce in two_sums, all_reduce in two_sums, then returned; rank 1 all_reduce"
    assert ended in who_entered(two_sums, 2, "Two sums", timeout=60).sentence


def test_the_odd_rank_is_the_one_whose_data_are_unlike_the_others():
    assert {job: lesson_00.odd_rank(job) for job in lesson_00.JOBS} == {"rows": 1, "nan": 2, "pairs": 3}


def test_a_job_that_does_not_begin_raises_its_error():
    with pytest.raises(RankError, match="never began|in no collective"):
        who_entered(lesson_00.JOBS["pairs"], 2, "Nothing", timeout=0.001)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "open('rank1.txt', 'w')\n",
            "rank1:\n  had ended before it could be asked\nBoth ranks came to the end",
        ),
        ("raise SystemExit('no data')\n", "The script failed: "),
    ],
)
def test_a_script_under_torchrun_says_how_it_ended(script, said, capsys):
    under_torchrun(script)
    assert said in capsys.readouterr().out


def test_what_ranks_print_stands_in_their_order(capsys):
    under_torchrun(
        "import os, time\nrank = int(os.environ['RANK'])\ntime.sleep(1 - rank)\nprint('rank', rank)\n"
    )
    assert "\nrank 0\nrank 1\nBoth ranks" in capsys.readouterr().out


def lesson_script():
    """The script of the lesson's cell that hangs."""
    cells = json.loads((NOTEBOOKS / "00_start_here.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    (source,) = [source for source in sources if source.startswith("SCRIPT")]
    return source.split('"""')[1].removeprefix("\\\n")


def test_a_rank_that_has_ended_lets_nobody_hang(capsys):
    script = lesson_script().replace("dist.recv(vocabulary, src=0)", "raise SystemExit")
    under_torchrun(script.partition("if rank == 0:")[0], ask=0)
    said = capsys.readouterr().out
    assert "Connection closed by peer" in said and "hung" not in said


def test_the_lessons_script_mended_comes_to_its_end(capsys):
    *before, reduce, condition, send, leave = lesson_script().splitlines()
    under_torchrun("\n".join([*before[:4], condition, send, *before[4:], reduce, leave]), ask=0)
    assert "Both ranks came to the end" in capsys.readouterr().out
