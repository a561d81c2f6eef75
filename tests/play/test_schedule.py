"""Pipeline schedules to play with: orders beside DeepSpeed's and the lesson's, sentences beside Python's."""

import pytest
from helpers import play, theory
from helpers.course.exercises.solutions import pipeline_parallelism as lesson
from helpers.course.play.grids import Grid
from helpers.course.play.orders import SCHEDULES
from helpers.course.play.pipelined import ANY, CHOICES, STAGES, cell, in_flight, sentence, timelines
from tests.play.clicking import clicked, combinations


def gpipe(rank, ranks, count):
    return [(kind, rank, micro) for kind in "FB" for micro in range(count)]


LESSON = (gpipe, lesson.one_f_one_b_solution, lesson.zero_bubble_solution)


@pytest.fixture(scope="module")
def grid():
    return Grid(CHOICES, cell)


@pytest.mark.parametrize("name, of_lesson", list(zip(SCHEDULES, LESSON)))
@pytest.mark.parametrize("micro", [1, 3, 4, 8])
def test_orders_without_a_cap_are_those_of_the_lesson(name, of_lesson, micro):
    for stage in range(STAGES):
        assert SCHEDULES[name](STAGES, stage, micro, max(micro, STAGES)) == of_lesson(stage, STAGES, micro)


def test_1f1b_is_deepspeeds():
    orders = theory.schedules.deepspeed_orders(STAGES, 8)
    assert [SCHEDULES["1F1B"](STAGES, stage, 8, 8) for stage in range(STAGES)] == orders


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_no_stage_holds_more_than_the_cap_and_all_is_done(name, cap):
    for stage in range(STAGES):
        order = SCHEDULES[name](STAGES, stage, 8, cap)
        assert theory.schedules.most_in_flight(order) <= cap
        assert len(order) == len(set(order)) == 8 * len({kind for kind, *_ in order})


def test_idle_time_is_that_of_the_formula(grid):
    for way in combinations(grid):
        picked = {name: grid.choices[name].options[place] for name, place in way.items()}
        if picked["slow"] == "none" and picked["cap"] == ANY and picked["schedule"] != "zero bubble":
            exact = theory.bubble_fraction(STAGES, picked["micro"])
            assert grid("idle", way) / 1000 == pytest.approx(exact, abs=0.0006)
    first, *_ = (cell(schedule="1F1B", micro=8, slow="none", cap=cap)["idle"] for cap in (ANY,))
    assert first < cell(schedule="1F1B", micro=8, slow="none", cap=2)["idle"]
    assert first < cell(schedule="1F1B", micro=8, slow=1, cap=ANY)["idle"]


def test_what_is_in_flight_is_what_theory_has_over_time():
    for row in timelines("zero bubble", 8, 2, 3):
        over_time = dict(theory.schedules.held_over_time(row))  # of several at one time the last
        assert {time: in_flight(row, time) for time in over_time} == over_time


def test_all_sentences_of_the_browser_are_those_of_python(browser, grid):
    found = combinations(grid)
    browser.show(play.schedule(), prefers_reduced_motion="reduce")
    assert len(found) == 120
    assert clicked(browser, found) == [sentence(grid, way, grid("total", way)) for way in found]


def test_boxes_and_every_moment_of_the_browser_are_those_of_python(browser, grid):
    read = """(() => {
      const boxes = figure.querySelector('[data-name="boxes"]');
      const shown = (one) => one.getAttribute("display") !== "none";
      const ends = [...boxes.children].filter(shown).map((one) => one.getBBox().x + one.getBBox().width);
      const moved = figure.querySelector('[data-name="cursor"]').getAttribute("transform");
      return [Math.max(...ends), parseFloat(moved.replace("translate(", ""))];
    })()"""
    browser.show(play.schedule())
    for last, cursor in clicked(browser, combinations(grid)[::5], read):
        assert last == pytest.approx(cursor, abs=0.2)  # the last box ends where the cursor stands
    for way in combinations(grid)[::23]:
        clicked(browser, [way])
        said = browser.run("""const found = [], slider = figure.querySelector("input[type=range]");
          for (let time = 0; time <= slider.max; time++) {
            slider.value = time;
            slider.dispatchEvent(new Event("input"));
            found.push(caption.textContent);
          }
          return found;""")
        assert said == [sentence(grid, way, time) for time in range(grid("total", way) + 1)]


def test_a_lesson_sets_the_start_and_what_can_be_chosen(browser):
    figure = play.schedule("cap", schedule="GPipe", micro=4)
    assert "schedule GPipe, micro-batches 4" in figure.sentence
    browser.show(figure)
    assert browser.run("return figure.querySelectorAll('legend').length") == 1
    with pytest.raises(ValueError, match="there is no stages: choose among schedule"):
        play.schedule(stages=8)
