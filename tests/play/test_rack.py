"""Hosts and cables: groups and bytes beside theory's, sentences of the browser beside Python's."""

import json

import pytest
from helpers import play, theory
from helpers.course.job.reference import EACH, HOSTS
from helpers.course.play.rack_picture import AXES
from helpers.course.play.racks import CHOICES, RANKS, Racks, groups, leaving, rack, scattered_bytes
from tests.play.clicking import clicked, combinations

GOOD, BAD = "pipe, data, model", "model, data, pipe"


@pytest.fixture(scope="module")
def grid():
    return Racks(CHOICES)


def test_every_axis_divides_all_ranks():
    for order, model, pipe, expert in ((GOOD, 8, 2, 4), (BAD, 2, 4, 8), ("data, pipe, model", 1, 8, 2)):
        found = groups(order, model, pipe, expert)
        sizes = {"pipe": pipe, "data": RANKS // model // pipe, "model": model, "expert": expert}
        for name, size in sizes.items():
            assert {len(group) for group in found[name]} == {size}
            assert sorted(rank for group in found[name] for rank in group) == list(range(RANKS))
        for group in found["expert"]:
            assert any(set(group) <= set(data) for data in found["data"])


def test_inside_a_host_nothing_crosses_a_cable():
    inside = leaving(GOOD, 8, 2, 1)
    assert inside["model"] == inside["expert"] == 0 < inside["data"]
    assert leaving(BAD, 8, 2, 1)["model"] > 40 * sum(inside.values())
    assert (
        leaving("pipe, model, data", 1, 1, 8)["expert"] == 0 < leaving("pipe, data, model", 8, 1, 2)["expert"]
    )


def test_an_all_to_all_crosses_where_pairs_do():
    whole = [list(range(16))]  # two hosts: 8 of a rank's 15 messages leave its host
    assert scattered_bytes(whole, 15.0) == pytest.approx(16 * 8)
    assert scattered_bytes([list(range(EACH))], 7.0) == 0 == scattered_bytes([[0], [1]], 0.0)


def test_partners_are_those_of_the_groups(grid):
    for way in combinations(grid)[::17]:
        picked = {name: grid.choices[name].options[place] for name, place in way.items()}
        if grid("refused", way):
            picked["expert"] = 1
        for name, of in groups(**picked).items():
            for rank in (0, 21, 63):
                (own,) = [group for group in of if rank in group]
                assert grid.partners(way, rank)[name] == sorted(set(own) - {rank})


def test_all_sentences_of_the_browser_are_those_of_python(browser, grid):
    found = combinations(grid)
    browser.show(play.rack())
    assert len(found) == 384
    assert clicked(browser, found) == [grid.sentence(way, 0) for way in found]


def test_each_rank_can_be_chosen_by_keys_and_pointer(browser, grid):
    browser.show(play.rack())
    said = browser.run("""return [...Array(64).keys()].map((rank) => {
      const click = new Event("click");
      figure.querySelector(`[data-name="gpu ${rank}"]`).dispatchEvent(click);
      return caption.textContent;
    })""")
    assert said == [grid.sentence(grid.start, rank) for rank in range(RANKS)]
    browser.run("figure.querySelector('input[type=range]').focus()")
    browser.key("ArrowLeft", 37)
    assert browser.run("return caption.textContent") == grid.sentence(grid.start, 62)


def test_cables_and_partners_of_the_browser_are_those_drawn_by_python(browser):
    """A figure that begins so looks as one in which it was chosen."""
    read = """[...figure.querySelectorAll("path[data-name], rect[stroke-width]")].map((one) => {
      const wide = Number(Number(one.getAttribute("stroke-width")).toFixed(1));
      return [one.dataset.name, wide, one.getAttribute("fill")];
    })"""
    start = {"order": GOOD, "model": 4, "pipe": 2, "expert": 2}
    browser.show(rack(**start))
    began = browser.run(f"return {read}")
    browser.show(rack())
    way = {name: list(CHOICES[name].options).index(option) for name, option in start.items()}
    assert clicked(browser, [way], read) == [began]
    assert len({name.split()[-1] for name, *_ in began if name}) == HOSTS
    assert {fill for *_, fill in began} >= {colour for colour, _ in AXES.values()}


def test_a_lesson_sets_the_start_and_what_can_be_chosen():
    figure = play.rack("order", model=8, pipe=8)
    assert "model t 8, pipe p 8" in figure.sentence and len(json.dumps(figure.data)) < 8_000
    with pytest.raises(ValueError, match="there is no tensor: choose among order, model, pipe, expert"):
        play.rack(tensor=8)
    assert theory.reference_cluster(HOSTS).gpus == RANKS
