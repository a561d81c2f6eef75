"""What a check does before it starts a rank, and how long it waits for ranks."""

import pytest
from helpers.course.exercises import in_ranks
from helpers.course.exercises import start_here as lesson_00
from helpers.tools.launcher.failures import RankError


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
        raise RankError(lambda hides: "ranks 0, 1 of 2 hung", [0, 1], [], "apart")

    monkeypatch.setattr("helpers.tools.launcher.jobs.launch", launch)
    for crowd, seconds in ((1.0, [10]), (2.0, [10, 40]), (50.0, [10, 40])):
        given_seconds.clear()
        monkeypatch.setattr(in_ranks, "crowding", lambda crowd=crowd: crowd)
        with pytest.raises(RankError):
            in_ranks.run_patiently(None, 2, in_ranks.Task(None, None, None, 0))
        assert given_seconds == seconds


def test_an_error_is_not_tried_again(monkeypatch):
    def launch(*arguments, **more):
        calls.append(1)
        raise RankError(lambda hides: "rank 0 of 2 raised ValueError", [0], [], "raised", "ValueError")

    calls = []
    monkeypatch.setattr("helpers.tools.launcher.jobs.launch", launch)
    monkeypatch.setattr(in_ranks, "crowding", lambda: 50)
    with pytest.raises(RankError):
        in_ranks.run_patiently(None, 2, in_ranks.Task(None, None, None, 0))
    assert calls == [1]
