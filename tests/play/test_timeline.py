"""A cursor over a history: the browser's sentences are Python's, and numbers are the ledger's."""

import re
from types import SimpleNamespace

import pytest
from helpers import play
from helpers.course.play.histories import Held
from helpers.course.play.history_picture import ticks
from helpers.tools.measure.held import History
from tests.play.training import history

TITLE = "Two steps"


@pytest.fixture(scope="module")
def known():
    return history()


def test_what_is_shown_is_what_the_ledger_counted(known):
    counted, named = known
    held = Held(counted, TITLE, named)
    for turn, moment in enumerate(held.moments):
        for name, values in {**counted.totals, **named}.items():
            assert name not in held.columns or held(name, turn) == round(values[moment] / held.scale)
        assert held("total", turn) == round(counted.total[moment] / held.scale)
    assert counted.total[held.moments[held.peak]] == max(counted.total)
    assert {0, len(counted.total) - 1} <= set(held.moments)


@pytest.mark.parametrize(
    ("most", "told"), [(6_070_000, [0, 2, 4, 6]), (850_000, [0, 0.2, 0.4, 0.6, 0.8]), (5_000_000, range(6))]
)
def test_amounts_at_the_axis_are_round(most, told):
    drawn = "".join(ticks(SimpleNamespace(digits=6, unit="MB"), most))
    assert [float(one) for one in re.findall(r">([\d.]+)<", drawn)] == list(told)


def test_names_add_up_to_the_storages_that_have_them(known):
    counted, named = known
    assert set(named) == {"like a weight", "like the first bias", "like the second bias"}
    for at, total in enumerate(counted.total):
        assert 0 <= sum(values[at] for values in named.values()) <= total
    weights = 2 * 64 * 128 * 4
    assert named["like a weight"][-1] == 3 * weights  # with both of Adam's


def test_a_long_history_stays_small_and_keeps_its_peak():
    line = [(17 * at) % 1000 for at in range(50_000)]
    line[31_415] = 5_000_000_000
    figure = play.timeline(History({"parameters": [4000] * 50_000, "other": line}, [(0, "step")]), TITLE)
    assert "Moment 31415 of 49999, step: 5.00 GB" in figure.sentence and len(figure.page) < 30_000


def test_bad_input_is_named(known):
    with pytest.raises(ValueError, match="of part there are 3 moments, and the history has"):
        play.timeline(known[0], TITLE, {"part": [1, 2, 3]})
    with pytest.raises(ValueError, match="at least two events, not 1"):
        play.timeline(History({"other": [1]}, []), TITLE)


def test_every_moment_of_the_browser_is_that_of_python(known, browser):
    held = Held(known[0], TITLE, known[1])
    browser.show(play.timeline(known[0], TITLE, known[1]))
    said = browser.run("""const found = [], slider = figure.querySelector("input");
      for (let turn = 0; turn <= slider.max; turn++) {
        slider.value = turn;
        slider.dispatchEvent(new Event("input"));
        found.push(caption.textContent);
      }
      return found;""")
    assert said == [held.sentence(turn) for turn in range(len(held.moments))]
    assert len(set(said)) == len(said)


def test_keys_buttons_and_the_pointer_move_the_cursor(known, browser):
    held, said = Held(known[0], TITLE, known[1]), "return caption.textContent"
    browser.show(play.timeline(known[0], TITLE, known[1]))
    browser.run("figure.querySelector('input').focus()")
    browser.key("ArrowRight", 39)
    assert browser.run(said) == held.sentence(held.peak + 1)
    browser.run("[...figure.querySelectorAll('button')].find((one) => one.textContent == 'most').click()")
    assert browser.run(said) == held.sentence(held.peak)
    browser.run("figure.querySelectorAll('button')[1].click()")
    assert browser.run(said) == held.sentence(held.peak - 1)
    where = "const at = figure.querySelector('svg').getBoundingClientRect(); return [at.right - 2, at.bottom]"
    x, y = browser.run(where)
    browser.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y - 99, button="left")
    assert browser.run(said) == held.sentence(len(held.moments) - 1)
    browser.run("const play = figure.querySelector('button'); play.click(); await wait(700); play.click()")
    assert browser.run(said) != held.sentence(len(held.moments) - 1)  # it plays again from the start
