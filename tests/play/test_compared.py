"""Two bars on one axis: numbers beside the job's and the lesson's formula, the browser's sentences and goals
beside Python's."""

import pytest
from helpers import job, play
from helpers.course.exercises import pipeline_parallelism as lesson_06
from helpers.course.exercises import tensor_parallelism as exercises
from helpers.course.play import blocks, cutting, gpus
from helpers.course.play.compared import Compared
from tests.play.clicking import clicked, combinations

FIGURES = {"replicas": gpus, "shared": blocks, "cuts": cutting}
EACH = pytest.mark.parametrize("name", FIGURES)


def grid_of(module):
    return Compared(module.BARS, module.CHOICES)


def options(module, at):
    return [choice.options[at[name]] for name, choice in module.CHOICES.items()]


def test_every_number_of_a_step_is_the_job_s():
    grid = grid_of(gpus)
    for at in combinations(grid):
        count, network, way, sequences = options(gpus, at)
        found = job.replicated_step(count, gpus.NETWORKS[network], way, sequences)
        assert [grid(part, at) for part in found] == [round(100 * seconds) for seconds in found.values()]


def test_every_number_of_a_block_is_the_lesson_s_formula():
    grid = grid_of(blocks)
    for at in combinations(grid):
        count, link, model, tokens = options(blocks, at)
        parts = job.block_parts(model)
        repeated = parts["elementwise, repeated"]
        work, message = sum(parts.values()) - repeated, job.block_bytes(model) / blocks.LINKS[link]
        due = exercises.block_seconds.solution(count, work, repeated, message, tokens == "yes")
        assert grid("total", at) == pytest.approx(1e5 * due, abs=0.51)
        assert sum(grid(part, at) for part in blocks.BARS.parts) == pytest.approx(1e5 * due, abs=2)


def test_every_number_of_a_line_is_the_lesson_s_formula():
    grid = grid_of(cutting)
    for at in combinations(grid)[::7]:
        blocks_, stages, cut, order = options(cutting, at)
        begins = cutting.begins(blocks_, stages, cut)
        each = job.stage_seconds(job.layer_costs(blocks_), begins)
        waiting = lesson_06.bubble.solution(each, job.SEQUENCES)
        assert grid("waiting", at) == pytest.approx(100 * waiting, abs=0.51)
        assert grid("total", at) == pytest.approx(100 * (waiting + 64 * sum(each) / stages), abs=0.51)
        assert sum(cutting.blocks_of(blocks_, stages, cut)) == blocks_


@pytest.mark.parametrize(
    "name, cut", [("8 stages", "blocks"), ("8 stages, short ones at the ends", "parameters")]
)
def test_a_line_needs_what_was_rehearsed(name, cut):
    """But for gradients of activations, half a sequence's."""
    assert tuple(cutting.blocks_of(32, 8, cut)) == job.plan(name).stages
    due = job.peak(name) + job.stored(name)["outside"]
    assert cutting.needed(32, 8, cut, "1F1B") == pytest.approx(due, rel=0.025)


@EACH
def test_some_choice_reaches_every_goal_and_the_start_none(name):
    grid = grid_of(FIGURES[name])
    reached = [grid("goals", at) for at in combinations(grid)]
    assert all(any(goals & 2**place for goals in reached) for place in range(len(grid.bars.goals)))
    assert grid("goals", grid.start) == 0


@EACH
def test_all_sentences_and_goals_of_the_browser_are_those_of_python(name, browser):
    grid = grid_of(FIGURES[name])
    browser.show(getattr(play, name)())
    found = combinations(grid)
    assert clicked(browser, found) == [grid.sentence(at) for at in found]
    done = browser.run("return figure.querySelectorAll('.goals .done').length")
    assert done == len(grid.bars.goals)


@EACH
def test_an_unknown_choice_is_refused(name):
    with pytest.raises(ValueError, match="there is no clouds"):
        getattr(play, name)("clouds")
