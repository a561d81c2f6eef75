"""The ring of lesson 03 beside the real all-reduce, its bytes with gloo's headers, and the tree; a bug that a
learner plants is that bug."""

import numpy
import pytest
import torch
from helpers import launch, recorded, rings, theory
from helpers.course.exercises import collectives as lesson_03
from helpers.course.exercises.editing import edit
from helpers.course.exercises.solutions import collectives as solutions

pytestmark = pytest.mark.ranks
HEADERS = 3 * 48  # bytes that gloo adds to an exchange: it will send, it can receive, and the data's own


def ring_all_reduce(
    tensor, exchange, scatter=solutions.ring_reduce_scatter, gather=solutions.ring_all_gather
):
    scatter(tensor, exchange)
    gather(tensor, exchange)


def beside_the_real_one(elements):
    import deepspeed.comm as comm

    rings.digits()
    torch.manual_seed(comm.get_rank())
    ring = torch.randn(elements)
    real, tree = ring.clone(), ring.clone()
    ring_all_reduce(ring, solutions.exchange)
    rings.tree_all_reduce(tree)
    comm.all_reduce(real)
    return {"ring": (ring - real).abs().max().item(), "tree": (tree - real).abs().max().item()}


@pytest.mark.parametrize("ranks", [2, 4])
def test_ring_and_tree_give_the_real_sum(ranks):
    for report in launch(beside_the_real_one, ranks=ranks, arguments={"elements": 100_003}, device="cpu"):
        assert max(report.values()) < 1e-5


@pytest.mark.parametrize(("ranks", "elements"), [(2, 262_144), (4, 262_144), (2, 100_003), (4, 100_003)])
def test_a_ring_sends_the_predicted_bytes_and_headers_alone(ranks, elements):
    sent = rings.sent_in_a_ring(ring_all_reduce, solutions.exchange, 4 * elements, ranks)
    exact = theory.wire_bytes("all_reduce", 4 * elements, ranks) + 2 * (ranks - 1) * HEADERS
    assert sent == exact


def test_must_send_and_the_ring_s_seconds_are_theory_s():
    for ranks in (2, 4, 64):
        for name in theory.COLLECTIVES:
            assert solutions.must_send_solution(name, 1 << 20, ranks) == theory.wire_bytes(
                name, 1 << 20, ranks
            )
        case = 1e6, ranks, 1e-5, 1e9
        ours = solutions.all_reduce_seconds_solution("ring", *case)
        assert ours == pytest.approx(theory.collective_seconds("all_reduce", *case))


@pytest.mark.parametrize(("buckets", "seconds"), [(1, 0.5), (8, 0.01), (8, 0.3), (1000, 0.004)])
def test_exposed_is_what_a_link_still_has_to_do_when_the_pass_ends(buckets, seconds, backward=2.0):
    free = 0.0
    for bucket in range(1, buckets + 1):
        free = max(free, backward * bucket / buckets) + seconds
    assert solutions.exposed_solution(buckets, seconds, backward) == pytest.approx(free - backward)


def test_gloo_s_reduce_scatter_sends_as_much_as_its_all_reduce():
    for ranks in (2, 4):
        sent = rings.sent_by_gloo(1 << 20, ranks)
        assert sent["reduce_scatter"] == pytest.approx(sent["all_reduce"], rel=1e-3)


def test_a_bug_is_accepted_where_it_is_the_one_that_was_asked_for():
    def verdict(new):
        return lesson_03.passes_raw.verdict(edit(solutions.passes_raw_solution, "passing = incoming", new))

    assert "that is the bug" in verdict("passing = incoming[:]")
    assert "your function is still right" in verdict("passing = mine")


@pytest.mark.parametrize(
    ("check", "old", "new", "words"),
    [
        (
            "ring_all_gather",
            "parts[(rank - i + 1) % ranks]",
            "parts[rank + 0]",
            "your own part goes out once",
        ),
        ("ring_all_gather", "(rank - i + 1) %", "(rank + i - 1 + 0) %", "what you send walks down"),
        ("ring_reduce_scatter", "(rank - i - 1)", "(rank + i - 3 + 0)", "what arrives walks down"),
    ],
)
def test_parts_that_do_not_fit_are_no_excuse_for_few_words(check, old, new, words):
    """Sizes disagree with the last tensors, but the first has equal parts, and says what is wrong."""
    check = getattr(lesson_03, check)
    assert words in check.verdict(edit(check.solution, old, new))


def test_two_ranks_see_neither_raw_parts_nor_whole_tensors_but_three_do():
    def ring(tensor, **halves):
        ring_all_reduce(tensor, solutions.exchange, **halves)

    faults = {
        "raw": lambda tensor: ring(tensor, scatter=solutions.passes_raw_solution),
        "whole": lambda tensor: rings.whole_tensors(tensor, solutions.exchange),
        "remainder": rings.without_remainder(ring),
        "many": lambda tensor: ring(tensor, gather=rings.one_too_many),
    }
    values, sent = [[f"{what}, {ranks} ranks" for ranks in (2, 3)] for what in ("values", "bytes")]
    picture = rings.caught_at((2, 3), ring, faults, "title")
    assert "the ring itself: no test" in picture.sentence
    assert picture.tests == {
        **{"raw": values[1:], "whole": sent[1:], "many": sent},
        "remainder": [name for pair in zip(values, sent) for name in pair],
    }


def test_a_link_that_sleeps_takes_what_the_formula_says():
    """At least, however busy the processor is; each way's messages in a row are those of the formula."""
    slow, sizes = (0.03, 1e7), (4_000, 400_000)
    clocked = rings.seconds_on_a_slow_link(ring_all_reduce, solutions.exchange, sizes, slow)
    assert set(clocked) == {(way, size) for way in ("naive", "tree", "ring") for size in sizes}
    for (way, size), seconds in clocked.items():
        due = solutions.all_reduce_seconds_solution(way, size, 4, *slow)
        assert due <= seconds < 3 * due


def fitted(fit=solutions.fit_solution, link="NVLink", sizes=slice(None, None, 2)):
    """The recording's calls, and the line of some of its all-reduces."""
    calls = recorded.runs("collectives", ranks=2, link=link)[0].reports[0]
    reduces = calls["all-reduce"]
    return calls, fit(reduces["bytes"][sizes], reduces["replayed"][sizes])


def ratios(calls, line, way, part):
    """Predicted over recorded seconds, by size."""
    return {
        size: (line["start"] + part * size / line["bandwidth"]) / seconds
        for size, seconds in zip(calls[way]["bytes"], calls[way]["replayed"])
    }


def without_weights(sent, seconds):
    slope, start = numpy.polyfit(sent, seconds, 1)
    return {"start": start, "bandwidth": 1 / slope}


def test_a_fit_of_every_second_all_reduce_predicts_the_others_and_other_collectives_as_the_lesson_says():
    calls, line = fitted()
    parts = {"all-reduce": 1, "all-gather": 0.5, "point to point": 1, "all-to-all": 0.5}
    found = {way: ratios(calls, line, way, part) for way, part in parts.items()}
    assert all(0.5 < ratio < 1.25 for of in found.values() for ratio in of.values())
    assert min(min(of.values()) for of in found.values()) == found["all-gather"][1 << 22]
    assert 1 / found["all-gather"][1 << 22] == pytest.approx(1.8, abs=0.05)
    assert 1 / found["all-reduce"][1 << 22] == pytest.approx(1.6, abs=0.05)
    unseen = [found["all-reduce"][size] for size in calls["all-reduce"]["bytes"][1::2]]
    assert len(unseen) == 6 and min(unseen) > 0.73 and max(unseen) < 1.15


def test_a_fit_without_weights_is_refused_and_fails_where_the_companion_says():
    assert "five times as long" in lesson_03.fit.verdict(without_weights)
    calls, line = fitted(without_weights)
    assert line["start"] == pytest.approx(48e-6, abs=1e-6)
    off = ratios(calls, line, "all-reduce", 1)
    assert 5 < off[1 << 10] < 5.5 and off[1 << 34] == pytest.approx(1, abs=0.01)
    gradients, seconds = recorded.stage_0("NVLink")
    for fit, short in ((without_weights, 0.146), (solutions.fit_solution, 0.02)):
        _, line = fitted(fit, sizes=slice(None))
        assert 1 - (line["start"] + gradients / line["bandwidth"]) / seconds == pytest.approx(
            short, abs=0.005
        )


def test_a_line_of_tensors_without_dimensions_is_a_line():
    def fit(sent, seconds):
        return {name: torch.tensor(value) for name, value in solutions.fit_solution(sent, seconds).items()}

    doubles = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert lesson_03.fit.verdict(fit).startswith("correct")
    finally:
        torch.set_default_dtype(doubles)


def test_16_gb_on_one_host_take_what_the_lesson_says():
    """In a ring by the fit of large all-reduces, and where the NVSwitch adds, by NCCL's maintainers."""
    _, large = fitted(sizes=slice(9, None))
    ring = solutions.must_send_solution("all_reduce", 16.06e9, 8)
    assert large["start"] + ring / large["bandwidth"] == pytest.approx(81e-3, rel=0.01)
    assert (
        ring / 277e9 == pytest.approx(102e-3, rel=0.01) and pytest.approx(58e-3, rel=0.01) == 16.06e9 / 275e9
    )


def test_what_the_host_takes_and_what_the_gpus_take_stand_side_by_side():
    times = {"bytes": [1000], "alone": [[9e-5, 8e-5, 1e-4]], "issued": [[6e-5] * 3], "replayed": [9e-6]}
    (row,) = recorded.parts_of_calls(times)
    assert row == {"kB": "1", "called alone, µs": "90", "host, µs": "60", "GPUs, µs": "9"}


def test_messages_of_stage_0_are_those_that_the_lesson_predicts():
    gradients, seconds = recorded.stage_0("NVLink")
    assert gradients == 2 * 1_557_686_400 and seconds == pytest.approx(0.0105, rel=0.01)
