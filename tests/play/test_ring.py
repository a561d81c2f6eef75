"""The ring: contents after each turn, and the same in the browser."""

import pytest
from helpers import play, theory
from helpers.course.play.rings import LAST, RANKS, START, sentences, turns

BACK = f"for (let turn = 0; turn < {START}; turn++) figure.querySelectorAll('button')[1].click()"
STEP = "return figure.querySelectorAll('button')[2].click()"
HELD = """return [0, 1, 2, 3].map((rank) => [0, 1, 2, 3].map((part) => {
    const row = figure.querySelector(`[data-name="part ${rank} ${part}"]`);
    return [...row.querySelectorAll('g[opacity="1"]')].map((cell) => cell.dataset.name).join("");
  }))"""


def test_it_is_what_adding_and_passing_on_gives():
    """Beside numbers: rank r holds 10^r, so that a sum says whose numbers are in it."""
    values = [[10**rank] * RANKS for rank in range(RANKS)]
    for number, turn in enumerate(turns()):
        if turn.sends:
            came = [(rank, part, values[rank][part]) for rank, part in enumerate(turn.sends)]
            for rank, part, value in came:
                there = values[(rank + 1) % RANKS]
                there[part] = value + (there[part] if number < RANKS else 0)
        said = [[sum(10 ** int(rank) for rank in part) for part in parts] for parts in turn.held]
        assert said == values
    assert values == [[1111] * RANKS] * RANKS


def test_after_half_of_it_each_rank_has_one_finished_part():
    finished = [[part == "0123" for part in parts].count(True) for parts in turns()[RANKS - 1].held]
    assert finished == [1] * RANKS


def test_bytes_are_those_of_theory():
    sent = theory.wire_bytes("all_reduce", 400, RANKS)
    assert len(turns()) == LAST + 1 and sent == LAST * 400 / RANKS
    assert sentences(400)[-1].endswith(f"Each has sent {sent:g} of {sent:g} MB.")
    with pytest.raises(ValueError, match="megabytes"):
        play.ring(0)


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_each_turn_of_the_browser_is_that_of_python(motion, browser):
    browser.show(play.ring(), prefers_reduced_motion=motion)
    said = sentences(400)
    browser.run(BACK)
    for turn, at in enumerate(turns()):
        if turn:
            browser.run(STEP)
        if motion != "reduce":
            browser.run("await wait(1200)")
        assert browser.run("return caption.textContent") == said[turn]
        assert browser.run(HELD) == [list(parts) for parts in at.held]
    back, step = browser.run(
        "return [...figure.querySelectorAll('button')].slice(1).map((one) => one.disabled)"
    )
    assert (back, step) == (False, True)


def test_it_plays_to_the_end_and_can_be_paused(browser):
    browser.show(play.ring(), prefers_reduced_motion="reduce")
    play_it = "const play = figure.querySelector('button'); play.click();"
    browser.run(f"{play_it} await wait(2200); play.click()")
    said = browser.run("return caption.textContent")
    assert said == sentences(400)[START + 1]
    browser.run("await wait(2200)")
    assert browser.run("return caption.textContent") == said
