"""A step's time line tells the account of `theory.step_seconds`, second for second."""

import pytest
from helpers import models, step_timeline, theory
from helpers.course.plots.hiding import step_boxes
from tests.support import configuration

GPU = theory.MachineConstants(
    matrix={"bf16": {1024: 400e12}}, memory=3e12, launch=5e-6, latency=1e-5, bandwidth=3e11, asynchronous=True
)
SMALL = models.GPTSize(layers=2, width=64, heads=2, vocabulary=256)


def step(size=models.GPT2_XL, machine=GPU, **zero):
    config = configuration(micro_batch=4) | {"zero_optimization": zero}
    return theory.step_seconds(size, machine, config=config, ranks=8)


@pytest.mark.parametrize(
    "taken",
    [
        step(stage=1, overlap_comm=False),
        step(stage=1, overlap_comm=True),
        step(stage=3),
        step(SMALL, stage=2),
    ],
    ids=["exposed", "overlapped", "stage 3", "launches"],
)
def test_boxes_are_the_account(taken):
    boxes = step_boxes(taken)
    seconds = {row: sum(end - start for *_, start, end in found) for row, found in boxes.items()}
    assert max(end for found in boxes.values() for *_, end in found) == pytest.approx(taken.total)
    assert seconds["exposed"] == pytest.approx(taken.parts["messages"])
    assert seconds["messages"] == pytest.approx(taken.parts["messages"] + taken.hidden)
    assert seconds["work"] == pytest.approx(taken.total - taken.parts["messages"])
    ends = [end for *_, end in boxes["work"]]
    assert all(start >= end - 1e-12 for (*_, start, _), end in zip(boxes["work"][1:], ends))


def test_a_message_that_hides_goes_on_beside_the_backward_pass():
    exposed, hidden = (step_boxes(step(stage=1, overlap_comm=overlap)) for overlap in (False, True))
    for boxes, beside in ((exposed, False), (hidden, True)):
        (*_, end), (*_, first, last) = boxes["work"][1], boxes["messages"][0]
        assert (first < end - 1e-9, last) == (beside, pytest.approx(end if beside else end + last - first))
    assert [len(boxes["exposed"]) for boxes in (exposed, hidden)] == [2, 1]  # the all-gather is alone


def test_waiting_for_the_host_is_drawn():
    assert "waiting" in [kind for kind, *_ in step_boxes(step(SMALL, stage=2))["work"]]


def test_the_sentence_says_what_is_exposed_and_what_hides():
    plot = step_timeline({"late": step(stage=1, overlap_comm=False), "early": step(stage=3)}, "Title")
    late, early = plot.sentence.removeprefix("Figure: Title. ").removesuffix(".").split("; ")
    assert late.startswith("late: ") and late.endswith("hidden 0") and "exposed 0," in early
    (axes,) = plot.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["late", "early"]
    late, early = step(stage=1, overlap_comm=False), step(stage=3)
    assert (
        f": {1e3 * early.total:.3g} to {1e3 * late.total:.3g} ms,"
        in step_timeline({"": (early, late)}, "Title").sentence
    )
    (whisker, _) = step_timeline({"": (early, late)}, "Title").figure.axes[0].lines
    assert list(whisker.get_xdata()) == pytest.approx([1e3 * early.total, 1e3 * late.total])
    with pytest.raises(ValueError, match="give at least one step"):
        step_timeline({}, "Title")
