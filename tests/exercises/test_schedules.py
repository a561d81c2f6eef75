"""A schedule is looked at before any rank starts: what is wrong with it is said at once, and in words."""

import pytest
from helpers.course.exercises import pipeline_parallelism
from tests.exercises.course import solutions

SOLUTION = solutions()["06-one_f_one_b"]


def as_a_generator(rank, ranks, count):
    yield from SOLUTION(rank, ranks, count)


def other_way_round(rank, ranks, count):
    """The first rank does least first: nobody can begin to go back."""
    forwards, backwards = ([(kind, rank, micro) for micro in range(count)] for kind in "FB")
    first = min(rank, count)
    return (
        forwards[:first]
        + [one for pair in zip(forwards[first:], backwards) for one in pair]
        + backwards[count - first :]
    )


def backward_first(rank, ranks, count):
    """In each pair a backward pass before the forward pass that it needs, on the last rank."""
    forwards, backwards = ([(kind, rank, micro) for micro in range(count)] for kind in "FB")
    first = min(ranks - rank - 1, count)
    return (
        forwards[:first]
        + [one for pair in zip(backwards, forwards[first:]) for one in pair]
        + backwards[count - first :]
    )


@pytest.fixture
def without_ranks(monkeypatch):
    monkeypatch.setattr("helpers.course.exercises.builds.run_patiently", None)


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda rank, ranks, count: 1 / 0, "raised ZeroDivisionError for rank=0, ranks=4, count=8"),
        (lambda rank, ranks, count: 7, "gives no list of actions"),
        (
            lambda rank, ranks, count: ["FB"],
            "holds ('F', 'B'), which is no action such as (\"F\", stage, micro)",
        ),
        (lambda rank, ranks, count: [("X", rank, 0)], "holds ('X', 0, 0), which is no action"),
        (lambda rank, ranks, count: 2 * SOLUTION(rank, ranks, count), "rank 0 does ('B', 0, 0) 2 times"),
        (lambda rank, ranks, count: SOLUTION(rank, ranks, count)[:-1], "rank 0 never does ('B', 0, 7)"),
        (other_way_round, "wait for each other for ever: rank 0 before ('B', 0, 0)"),
        (backward_first, "rank 3 before ('B', 3, 0); in a pair the forward pass comes first"),
    ],
)
def test_what_is_no_schedule_is_named_and_starts_no_rank(answer, words, without_ranks):
    verdict = pipeline_parallelism.one_f_one_b.verdict(answer)
    assert verdict.startswith("not yet: ") and words in verdict


def test_a_right_schedule_passes_the_first_look_in_whatever_form(without_ranks):
    for answer in (
        SOLUTION,
        as_a_generator,
        lambda rank, ranks, count: [list(action) for action in SOLUTION(rank, ranks, count)],
    ):
        assert pipeline_parallelism.one_f_one_b.looked_at(answer) == ""


def test_a_schedule_is_drawn_or_it_is_said_why_not(capsys):
    assert pipeline_parallelism.draw(lambda rank, ranks, count: ...) is None
    assert capsys.readouterr().out.startswith("○ not written yet: ")
    assert pipeline_parallelism.draw(other_way_round) is None
    assert capsys.readouterr().out.startswith("✗ not yet: the orders wait for each other for ever")
    assert (
        "33 slots, idle 0.273 of the time, at most 4, 3, 2, 1 in flight"
        in pipeline_parallelism.draw(SOLUTION).sentence
    )
