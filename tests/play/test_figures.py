"""What holds for every figure to play with."""

import base64
import configparser
import json
import re

import nbformat
import pytest
from helpers import play
from helpers.course.play.played import HERE
from helpers.course.play.vectors import WIDE
from helpers.paths import ROOT
from tests.play.training import history


def of_training():
    counted, named = history()
    return play.timeline(counted, "Two steps", named)


FIGURES = {
    "budget": play.budget,
    "timeline": of_training,
    "replicas": play.replicas,
    "shared": play.shared,
    "cuts": play.cuts,
    "ring": play.ring,
    "schedule": play.schedule,
    "rack": play.rack,
}
NAMES = pytest.mark.parametrize("name", FIGURES)


@pytest.fixture(scope="module")
def figures():
    return {name: make() for name, make in FIGURES.items()}


@NAMES
def test_an_output_is_small_and_asks_for_nothing(name, figures):
    page = figures[name].page
    assert len(page.encode()) < 61_000
    assert not re.search(
        r'(src|href)="(?!data:)|url\((?!#)|import\(|fetch\(|https?://(?!www.w3.org/2000/svg)', page
    )


@NAMES
def test_without_scripts_there_is_the_picture_and_its_sentence(name, figures):
    found = figures[name]._repr_mimebundle_()
    said = found["text/plain"]
    assert said == figures[name].sentence and said.startswith("Figure: ") and re.search(r"\d", said)
    image = r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)"'
    alt, source = re.search(image, found["text/html"]).groups()
    assert alt in found["text/html"].partition("<figcaption")[2]
    assert "<svg" in base64.b64decode(source).decode()


@NAMES
def test_two_of_a_kind_in_a_page_do_not_disturb_each_other(name, figures, browser):
    browser.show(figures[name], figures[name])
    ids = browser.run("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    assert browser.run("return document.querySelectorAll('figure svg').length") == 2


@NAMES
@pytest.mark.parametrize("wide", [900, 420])
def test_nothing_is_wider_than_the_page(name, wide, figures, browser):
    browser.show(figures[name], wide=wide)
    assert browser.run("return document.documentElement.scrollWidth") <= wide
    outside = f"""return [...figure.querySelectorAll("svg text")].filter((one) => {{
        const at = one.getBBox(); return at.x < 0 || at.x + at.width > {WIDE};
    }}).map((one) => one.textContent)"""
    assert browser.run(outside) == []


@NAMES
def test_words_do_not_lie_on_each_other(name, figures, browser):
    browser.show(figures[name])
    overlapping = """const seen = [...figure.querySelectorAll("svg text")].filter((one) => one.textContent);
      const boxes = seen.map((one) => one.getBoundingClientRect()), found = [];
      boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b, j) => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 5) found.push([seen[i].textContent, seen[i + 1 + j].textContent]);
      }));
      return found;"""
    assert browser.run(overlapping) == []


@NAMES
def test_print_shows_the_picture_without_controls(name, figures, browser):
    browser.show(figures[name], media="print")
    shown = "return ['svg', '.controls'].map((one) => getComputedStyle(figure.querySelector(one)).display)"
    assert browser.run(shown) == ["block", "none"]


def test_modules_and_scripts_can_be_read_in_one_sitting():
    files = [file for file in HERE.iterdir() if file.suffix in (".py", ".js", ".css")]
    assert {file.suffix for file in files} == {".py", ".js", ".css"}
    assert {file.name: lines for file in files if (lines := file.read_text().count("\n")) >= 150} == {}


def test_nbval_compares_numbers_and_ignores_what_draws(figures):
    rules = configparser.ConfigParser()
    rules.read(ROOT / "tests/nbval_pictures.cfg")
    for figure in figures.values():
        page = figure.page
        for rule in rules.values():
            if "regex" in rule:
                page = re.sub(rule["regex"], rule["replace"], page)
        numbers = json.dumps(figure.data, separators=(",", ":"), ensure_ascii=False)
        assert numbers in page and figure.svg not in page
        assert "base64" not in page and "const figure" not in page and "<style>" not in page


def test_the_demo_shows_every_figure():
    cells = nbformat.read(ROOT / "tests/play/demo.ipynb", as_version=4).cells
    shown = [output.data["text/html"] for cell in cells for output in cell.get("outputs", [])]
    assert all('<figure class="play"' in page for page in shown) and len(shown) == len(FIGURES) + 1
    source = "\n".join(cell.source for cell in cells)
    assert all(f"play.{name}(" in source for name in FIGURES)
