"""A schedule is looked at before any rank starts: what is wrong with it is said at once, and in words."""

import pytest
from helpers.course.exercises import pipeline_parallelism
from helpers.tools.theory import schedules
from tests.exercises.course import right_answers, solutions

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


@pytest.mark.parametrize(
    "answer, words",
    [
        (
            lambda rank, ranks, count: 1 / 0,
            "for rank=0, ranks=4, count=8 your function raised ZeroDivisionError",
        ),
        (lambda rank, ranks, count: 7, "your function raised TypeError"),
        (
            lambda rank, ranks, count: ["FB"],
            "holds ('F', 'B'), which is no action such as (\"F\", rank, micro)",
        ),
        (lambda rank, ranks, count: [("X", rank, 0)], "holds ('X', 0, 0), which is no action"),
        (lambda rank, ranks, count: 2 * SOLUTION(rank, ranks, count), "rank 0 does ('B', 0, 0) 2 times"),
        (lambda rank, ranks, count: SOLUTION(rank, ranks, count)[:-1], "rank 0 never does ('B', 0, 7)"),
        (other_way_round, "wait for each other for ever: rank 0 before ('B', 0, 0)"),
        (backward_first, "rank 3 before ('B', 3, 0); in a pair the forward pass comes first"),
    ],
)
def test_what_is_no_schedule_is_named(answer, words):
    verdict = pipeline_parallelism.one_f_one_b.verdict(answer)
    assert verdict.startswith("not yet: ") and words in verdict


def test_an_endless_loop_ends(monkeypatch):
    monkeypatch.setattr("helpers.course.exercises.calling.LIMIT", 0.5)

    def endless(rank, ranks, count):
        while True:
            pass

    verdict = pipeline_parallelism.one_f_one_b.verdict(endless)
    assert "was still running" in verdict


def test_a_right_schedule_passes_in_whatever_form():
    for answer in (
        SOLUTION,
        as_a_generator,
        lambda rank, ranks, count: [list(action) for action in SOLUTION(rank, ranks, count)],
    ):
        assert pipeline_parallelism.one_f_one_b.verdict(answer).startswith("correct")


def test_two_in_flight_is_scored_by_what_is_idle():
    check = pipeline_parallelism.two_in_flight
    assert "in flight at once where 2 is right" in check.verdict(SOLUTION)
    one_by_one = check.verdict(
        lambda rank, ranks, count: [(kind, rank, micro) for micro in range(count) for kind in "FB"]
    )
    assert "75.0 % of the time is idle, and 60.0 % is possible easily" in one_by_one
    in_pairs = check.verdict(right_answers("06-two_in_flight")["in groups of two"])
    assert in_pairs.startswith("correct for 3 pipelines (yours idles 60.0 % of the first)")
    assert "(yours idles 52.9 % of the first)" in check.verdict(check.solution)


def test_a_schedule_is_drawn_or_it_is_said_why_not(capsys):
    assert pipeline_parallelism.draw(lambda rank, ranks, count: ...) is None
    assert capsys.readouterr().out.startswith("○ not written yet: ")
    assert pipeline_parallelism.draw(other_way_round) is None
    assert capsys.readouterr().out.startswith("✗ not yet: the orders wait for each other for ever")
    assert (
        "33 slots, idle 0.273 of the time, at most 4, 3, 2, 1 in flight"
        in pipeline_parallelism.draw(SOLUTION).sentence
    )


ORDERS = ("one_f_one_b", "two_in_flight", "zero_bubble")


@pytest.mark.parametrize("name", ORDERS)
def test_the_course_s_order_and_right_ones_of_other_builds_pass(name):
    check = getattr(pipeline_parallelism, name)
    others = right_answers(f"06-{name}")
    assert len(others) >= 3
    for words, answer in {"the course's": check.solution, **others}.items():
        assert check.verdict(answer).startswith("correct"), words


@pytest.mark.parametrize("name", ORDERS)
def test_every_known_mistake_in_an_order_is_answered_with_its_own_words(name):
    check = getattr(pipeline_parallelism, name)
    for words, answer in check.mistaken().items():
        verdict = check.verdict(answer)
        assert verdict.startswith("not yet")
        assert words in verdict or "wait for each other" in verdict


def test_two_in_flight_idles_little_more_than_half():
    orders = [pipeline_parallelism.two_in_flight.solution(rank, 4, 8) for rank in range(4)]
    idle = schedules.idle_fraction(schedules.replay(orders, pipeline_parallelism.SLOTS))
    assert idle == pytest.approx(1 - 4 * 24 / (4 * 51))
