"""The learner's own plan is scored: does it fit, with how many GPUs would others, and what in it is not
needed."""

import pytest
from helpers.course.exercises import long_sequences as lesson_13


def needed(ranks=1, again=False, tiles=1, host=False, stage=0):
    """GB of an invented model: 10 of weights, 40 of blocks, 20 of logits, among the ranks; 8 of kept inputs
    remain with `again`."""
    return 10 / (ranks if stage == 3 else 1) + (((0 if host else 8) if again else 40) + 20 / tiles) / ranks


@pytest.mark.parametrize(
    "plan, words",
    [
        (..., "· no plan; what fits with the fewest has 1 GPU\n"),
        (
            {"ranks": 2},
            "· your plan needs 40.0 of 15 GB on 2 GPUs: it does not fit. What fits with the "
            "fewest has 1 GPU\n",
        ),
        (
            {"ranks": 8, "again": True, "stage": 3},
            "needs at least 4.8 of 15 GB on 8 GPUs: it fits. It would fit without `again` or "
            "without `stage`.",
        ),
        ({"again": True, "tiles": 8, "host": True}, "needs 12.5 of 15 GB on 1 GPU: it fits. What fits"),
        ({"gpus": 8}, "this plan cannot be computed: "),
        (8, "a plan is a dict, such as {'ranks': 8, 'stage': 3}, and 8 is none"),
    ],
)
def test_a_plan_is_answered_in_words(plan, words, capsys):
    lesson_13.score_plan(plan, needed, room=15)
    assert words in capsys.readouterr().out
