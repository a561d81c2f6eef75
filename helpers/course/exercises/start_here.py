"""Answers of lesson 00, and the mistakes that people make there."""

from collections.abc import Callable

import torch
from helpers.course.exercises import start_here_trials as trials
from helpers.course.exercises.comparing import article
from helpers.course.exercises.failing import Guilty, Hang
from helpers.course.exercises.formulas import Exercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.start_here_jobs import JOBS as JOBS
from helpers.course.exercises.start_here_jobs import TEXTS as TEXTS
from helpers.course.exercises.stubs import Returning, Stubs

stubs = Stubs("start_here")

who_am_i = stubs.build("who_am_i", Returning(trials.introduced))


class Deal(Exercise):
    """Rows are a list in the cases, and a tensor where the lesson trains."""

    def verdict(self, answer: object) -> str:
        said = super().verdict(answer)
        return said if not said.startswith("correct") else self.of_a_tensor(answer) or said

    def of_a_tensor(self, answer: Callable) -> str:
        """The verdict on what rank 1 of 2 gets of five rows of a tensor; "" where it is right."""
        rows = torch.arange(10).reshape(5, 2)
        begin = "not yet: for rows = torch.arange(10).reshape(5, 2), rank=1, ranks=2 your function"
        try:
            got = answer(rows, rank=1, ranks=2)
        except Exception as error:
            return f"{begin} raised {type(error).__name__}: {error}"
        if not rows.equal(torch.arange(10).reshape(5, 2)):
            return f"{begin} changes `rows` itself, which others still need: return a part of it"
        if not isinstance(got, torch.Tensor):
            return f"{begin} returns {article(type(got).__name__)}, where a tensor is asked for: slice `rows`"
        due = self.solution(rows, 1, 2)
        return "" if got.equal(due) else f"{begin} returns {got.tolist()} where {due.tolist()} is right"


deal = stubs.formula(
    "deal",
    kind=Deal,
    cases=[
        (list("abcde"), 0, 2),
        (list("abcde"), 1, 2),
        (list("abcdefgh"), 3, 4),
        (list("abc"), 0, 4),
        (list("abcdefghijk"), 1, 3),
    ],
)

mean_over_ranks = stubs.build("mean_over_ranks", Returning(trials.averaged), together=True)

log_alone = stubs.check(Hang, "log_alone", call=trials.asked, rungs=(mean_over_ranks,))

log_mean = stubs.build("log_mean", Returning(trials.logged), together=True, rungs=(mean_over_ranks,))

guilty = stubs.check(Guilty, "guilty", jobs=JOBS)

differing = stubs.build("differing", Returning(trials.compared), together=True)

train = stubs.build(
    "train", Returning(trials.trained), together=True, rungs=(who_am_i, deal, mean_over_ranks)
)


sum_of_ranks = stubs.formula("sum_of_ranks", [(4,), (1,), (2,), (8,)])


mean_of_squares = stubs.build("mean_of_squares", Returning(trials.squared))
