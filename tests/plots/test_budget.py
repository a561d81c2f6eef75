"""Budget bars: of plans and of recorded runs."""

import io
from dataclasses import replace

import pytest
from matplotlib.colors import to_rgba
from helpers import job, job_bars, plots, recorded
from helpers.course.job.picture import budget
from helpers.course.plots.budget import Budget, budget_bars
from helpers.course.plots.style import CAUTION, RIGHT, WRONG
from helpers.tools.rehearsal.reserving import RETRIES

GB = 10**9
BAR = Budget(
    parts={"parameters": 40 * GB, "logits": 10 * GB},
    phase="backward",
    kept=5 * GB,
    outside=2 * GB,
    how="fits",
    label="rehearsed",
    step=(8.0, 9.5),
)


def frames(plot):
    """Of what is too much."""
    return [
        patch
        for patch in plot.figure.axes[0].patches
        if patch.get_edgecolor() == to_rgba(WRONG) and not patch.fill
    ]


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {},
            "52.0 GB in the backward pass (parameters 40.0, logits 10.0, outside the allocator 2.0), 5.0",
        ),
        ({}, "8.0 GB to spare, 8.0 to 9.5 s a step; rehearsed."),
        ({"step": None}, "8.0 GB to spare; rehearsed."),
        ({"how": "fits only with retries"}, "8.0 GB to spare, fits only with retries"),
        ({"how": "no"}, "but does not fit between what is reserved, if it fitted, 8.0 to 9.5 s a step"),
        ({"sequences": 72}, "8.0 to 9.5 s a step of 72 sequences"),
        ({"phase": "in the second hour"}, "52.0 GB in the second hour"),
    ],
)
def test_what_a_bar_says(changes, words):
    plot = budget_bars({"a bar": replace(BAR, **changes)}, "Title", 60 * GB, "a card")
    assert "Title. a card, 60.0 GB. a bar: " in plot.sentence and words in plot.sentence
    assert not frames(plot)


def test_what_is_too_much_is_red():
    both = {"one": BAR, "other": replace(BAR, how="no", kept=0)}
    plot = budget_bars(both, "Title", 50 * GB, "a card")
    assert "2.0 GB too much" in plot.sentence and [round(one.get_width()) for one in frames(plot)] == [2, 2]
    assert frames(budget_bars(both, "Title", 52 * GB, "a card")) == []


def test_no_bar_and_an_unknown_part_are_refused():
    with pytest.raises(ValueError, match="give at least one"):
        budget_bars({}, "Title", GB, "a card")
    with pytest.raises(ValueError, match="no look is known for crumbs; there are parameters,"):
        budget_bars({"a": replace(BAR, parts={"crumbs": 1})}, "Title", GB, "a card")


EIGHT = [name for name, plan in job.PLANS.items() if plan.card == job.CARD][:8]


@pytest.mark.parametrize("bars", [["stage 1"], EIGHT])
def test_the_jobs_bars_fit_a_page(bars):
    from PIL import Image

    plot = job_bars(bars, "Title")
    assert isinstance(plot, plots.Plot) and Image.open(io.BytesIO(plot.png)).width <= 900
    assert all(f"{name}: {(job.peak(name) + 2.21e9) / 1e9:.1f} GB" in plot.sentence for name in bars)
    assert plot.sentence.endswith("by the constants of H100 80GB, recorded.")


def test_a_line_of_stages_has_the_seconds_of_1f1b():
    plot = job_bars({"eight copies": "stage 0", "a line": "8 stages"}, "Title")
    copies, line = plot.sentence.split("; a line: ")
    assert "8.9 to 10.7 s a step" in copies and "10.8 to 13.0 s a step" in line


def test_the_recorded_job_stands_beside_its_rehearsal():
    fits = recorded.runs("job", plan="stage 3, 4 GPUs")[0]
    plot = job_bars({"rehearsed": "stage 3, 4 GPUs", "recorded": fits}, "Title")
    there, _, here = plot.sentence.partition("; recorded on 4 x NVIDIA H100 80GB HBM3, ")
    assert "rehearsed: 51.5 GB in the backward pass" in there
    assert "51.3 GB in the backward pass (" in here and "not told apart 49.4" in here and ", 22.0 s a" in here
    with pytest.raises(ValueError, match="a run that did not fit"):
        job_bars({"a": recorded.runs("job", plan="stage 3, 4 GPUs, not checkpointed")[0]}, "Title")


def test_bars_of_two_cards_and_runs_of_other_experiments_are_refused():
    with pytest.raises(ValueError, match="are of B200 180GB, H100 80GB: draw two figures"):
        job_bars({"a": "stage 1", "b": "1 B200"}, "Title")
    with pytest.raises(ValueError, match="of the experiment 'job', and this run is of 'speed'"):
        job_bars({"a": recorded.runs("speed")[0]}, "Title")


def test_what_formulas_counted_is_a_bar_of_the_jobs_card():
    plot = job_bars({"weights": {"parameters": 16e9}, "all": "stage 1"}, "Title")
    assert "weights (counted): 16.0 GB of tensors (parameters 16.0)" in plot.sentence
    assert budget(job.states("stage 0")).how == "no" and budget(job.states("stage 1")).how == "fits"
    assert "69.0 GB to spare" in plot.sentence
    (said,) = [text for text in plot.figure.axes[0].texts if "69.0 GB to spare" in text.get_text()]
    assert said.xy[0] == pytest.approx(16)  # beside the bar, and not where it would be too much


@pytest.mark.parametrize(
    ("how", "colour", "words"),
    [("fits", RIGHT, "52.0 GB\n8.0 GB to spare"), (RETRIES, CAUTION, "52.0 GB\nfits only with\nretries")],
)
def test_a_verdict_has_its_colour(how, colour, words):
    plot = budget_bars({"a bar": replace(BAR, how=how)}, "Title", 60 * GB, "a card")
    (said,) = [text for text in plot.figure.axes[0].texts if text.get_text().startswith("52.0 GB")]
    assert (said.get_text(), to_rgba(said.get_color())) == (words, to_rgba(colour))
