"""Answers of lesson 00, and the mistakes that people make there."""

from collections.abc import Callable

import torch
from helpers.course.exercises import start_here_trials as trials
from helpers.course.exercises.builds import RankExercise
from helpers.course.exercises.comparing import article
from helpers.course.exercises.engine import Exercise
from helpers.course.exercises.failing import Guilty, Hang
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions import start_here as solutions
from helpers.course.exercises.start_here_jobs import JOBS as JOBS
from helpers.course.exercises.start_here_jobs import TEXTS as TEXTS
from helpers.course.exercises.trials import build, formula

who_am_i = build(solutions.who_am_i_solution, trials.introduced, mistakes={
    ("return rank, ranks", "return ranks, rank"): "the other way round: first this rank's number",
    ("return rank, ranks", "return rank + 1, ranks"): "ranks are counted from 0, as RANK says",
    ("return rank, ranks", "return str(rank), str(ranks)"):
        "a variable of the environment is a text: `int(...)` turns it into a number",
    ('os.environ["RANK"]', 'os.environ["LOCAL_RANK"]'):
        "LOCAL_RANK counts the ranks of one machine; RANK counts those of all",
    ('int(os.environ["WORLD_SIZE"])', "2"): "that is right with two ranks alone: WORLD_SIZE says how many",
}, praise="all ranks ran the same lines, and each found another number")  # fmt: skip


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


deal = formula(solutions.deal_solution, kind=Deal, cases=[
    (list("abcde"), 0, 2), (list("abcde"), 1, 2), (list("abcdefgh"), 3, 4), (list("abc"), 0, 4),
    (list("abcdefghijk"), 1, 3),
], mistakes={
    ("rows[:even]", "rows"): "some ranks get a row more than others, which is what hung: leave out the rest",
    ("[rank::ranks]", "[rank * even // ranks : (rank + 1) * even // ranks]"):
        "as many as due, but not dealt like cards: rank r gets rows r, r + ranks, r + 2 * ranks, ...",
    ("[rank::ranks]", ""): "those are the rows of all ranks together",
    ("[rank::ranks]", "[::ranks]"): "those are rank 0's rows, on every rank",
}, praise="every rank gets equally many, so every rank enters equally many all-reduces")  # fmt: skip

MEAN_OVER_RANKS = """
correct: an all-reduce leaves the sum on every rank, so each divides it for itself

that is the rank's own value: nothing was communicated
    comm.all_reduce(total) -> return value
that is the sum; a mean is divided by the number of ranks
    / comm.get_world_size() ->
that is right with two ranks alone: divide by the world size, whatever it is
    comm.get_world_size() -> 2
only rank 0 has the mean; an all-reduce gives it to all
    comm.all_reduce(total) -> comm.reduce(total, 0)
        total = total if comm.get_rank() == 0 else torch.tensor([float(value)])
"""
mean_over_ranks = build(
    solutions.mean_over_ranks_solution, trials.averaged, MEAN_OVER_RANKS, together=True
)  # fmt: skip

log_alone = Hang(
    solutions.log_alone_solution, trials.asked, rungs=(mean_over_ranks,),
    praise="rank 0 waits in the all-reduce, and no other rank ever comes",
)  # fmt: skip

MEAN = "mean = mean_over_ranks(value)"
log_mean = build(
    solutions.log_mean_solution, trials.logged, together=True, rungs=(mean_over_ranks,), mistakes={
    (MEAN, "mean = value"): "that is rank 0's own loss: it hangs no more, and is no mean either",
    ("if comm.get_rank() == 0:\n        return mean", "return mean"):
        "the mean is right; but every rank would log it, and rank 0 alone was to",
}, praise="all enter the all-reduce, and one speaks")  # fmt: skip

guilty = Guilty(
    solution=solutions.guilty_solution, jobs=JOBS,
    praise="with the rank mended that you named, each job came to its end",
)  # fmt: skip

COUNT = "count += (theirs != bits).sum().item()"
differing = build(solutions.differing_solution, trials.compared, together=True, mistakes={
    ("weight.detach().view(torch.int32)", "weight.detach()"):
        "0.0 == -0.0, though their bits differ: compare `.view(torch.int32)`",
    (COUNT, "count += int(not theirs.equal(bits))"): "that counts tensors; count their elements",
    ("weight.detach().view(torch.int32)", "weight.detach()", COUNT, "count += int(not theirs.equal(bits))"):
        "that counts tensors, and takes 0.0 for -0.0: count elements of `.view(torch.int32)` that differ",
    (COUNT, "count += (~theirs.view(torch.float32).isclose(bits.view(torch.float32))).sum().item()"):
        "that counts elements that are not close; equal to the last bit is asked for",
    (COUNT, "count += theirs.numel()"): "that counts all elements, whether they differ or not",
    (COUNT, "count = (theirs != bits).sum().item()"): "that is the last tensor's count: add them up",
    ("comm.broadcast(theirs, 0)", "pass"): "this rank's weights were compared with themselves",
    ("comm.broadcast(theirs, 0)", "comm.broadcast(theirs, comm.get_world_size() - 1)"):
        "those are the last rank's weights; a broadcast from rank 0 is asked for",
    (".clone()", ""): "a broadcast writes in place: without a copy rank 0's weights replace the model's own",
}, praise="0 means equal to the last bit")  # fmt: skip

DEALT = "mine, due = deal(ids, rank, ranks), deal(targets, rank, ranks)"
train = build(
    solutions.train_solution, trials.trained, together=True, rungs=(who_am_i, deal, mean_over_ranks),
    mistakes={
    (DEALT, "mine, due = ids, targets"): "every rank trained on all rows: deal them",
    (DEALT, "mine, due = deal(ids, 0, ranks), deal(targets, 0, ranks)"):
        "every rank trained on rank 0's rows: who is this rank?",
    ("engine.step()", "pass"): "the engine made no step: `engine.step()` after `engine.backward(loss)`",
    ("mean_over_ranks(loss.item())", "loss.item()"):
        "the second of each pair is the mean over all ranks: `mean_over_ranks`",
}, praise="DeepSpeed averages the gradients between your `backward` and your `step`")  # fmt: skip


SUM_OF_RANKS = """
correct: rank 0 adds nothing, and the last rank adds one less than the number of ranks

ranks are counted from 0, so the last one is ranks - 1
    ranks * (ranks - 1) -> ranks * (ranks + 1)
that is the number of ranks, and each of them brings its own number
    * (ranks - 1) // 2 ->
that is the last rank's number, and all of them are added
    ranks * (ranks - 1) // 2 -> ranks - 1
"""
sum_of_ranks = formula(solutions.sum_of_ranks_solution, [(4,), (1,), (2,), (8,)], SUM_OF_RANKS)


def _mean(numbers):
    return sum(numbers) / len(numbers)


mean_of_squares = RankExercise(
    lambda ranks, random: [{"value": value} for value in random.sample(range(10, 100), ranks)],
    lambda rank, given: _mean([own["value"] ** 2 for own in given]),
    mistakes={
        "that is its own value: nothing was communicated": lambda rank, given: given[rank]["value"] ** 2,
        "that is the sum; a mean is divided by the number of ranks": lambda rank, given: sum(
            own["value"] ** 2 for own in given
        ),
        "that is the mean of the values: square them before they are summed": lambda rank, given: _mean(
            [own["value"] for own in given]
        ),
        "that is the square of the mean: square before the sum, not after it": lambda rank, given: (
            _mean([own["value"] for own in given]) ** 2
        ),
    },
    solution=solutions.mean_of_squares_solution,
    praise="every rank gets the sum, so each divides it for itself",
)
