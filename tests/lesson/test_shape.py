"""The shape of a lesson of the second edition: who writes, and how far a guess is from its answer."""

import re

import nbformat
import pytest
from helpers.course.syllabus.counting import lines_of, sources, written_lines
from helpers.course.syllabus.outline import notebooks, number_of

SECOND_EDITION = ["00", "01", "02", "03", "04", "05", "06", "07", "08"]  # a list that grows
# Lessons without `caught`, and why.
NOTHING_TO_COMPARE = dict.fromkeys(("00", "06"), "its planted fault hangs, and leaves no values to compare")
WRITTEN, SHARE, LONGEST = 30, 1 / 5, 12  # lines of the learner, their share, lines of a given cell
COLUMNS, FARTHEST, GUESSES = 100, 2, (2, 4)  # of a line; cells from a guess to its answer; how many guesses
KEYS = 8  # of a configuration, nested ones counted
NO_MARKS = re.compile(r'"yes" if|else "no"|\w+ \|= .*for |inspect\.getsource')


@pytest.fixture(params=SECOND_EDITION)
def number(request):
    return request.param


@pytest.fixture
def cells(number):
    path = next(path for path in notebooks() if number_of(path) == number)
    return nbformat.read(path, as_version=4).cells


def test_the_learner_writes_much_of_the_code(cells):
    written = written_lines(cells)
    given = [lines_of(text) for text in sources(cells, "given")]
    count = sum(map(len, given))
    assert len(written) >= WRITTEN
    assert len(written) >= SHARE * (count + len(written))
    assert max(map(len, given)) <= LONGEST


def test_code_shows_no_verdict_of_its_own_and_fits_the_page(cells):
    for cell in cells:
        if cell.cell_type == "code":
            assert not NO_MARKS.search(cell.source), cell.source
            wide = [line for line in cell.source.splitlines() if len(line) > COLUMNS]
            assert not wide or "solution" in cell.metadata.get("tags", []), wide


def test_a_guess_stands_directly_above_its_answer(cells):
    asked = {
        name: at
        for at, cell in enumerate(cells)
        for name in re.findall(r"^(\w+) = exercises\.guess\(", cell.source, re.M)
    }
    answers = {
        name: at for at, cell in enumerate(cells) for name in re.findall(r"(\w+)\.compare\(", cell.source)
    }
    assert GUESSES[0] <= len(asked) <= GUESSES[1]
    for name, at in asked.items():
        assert 0 < answers[name] - at <= FARTHEST, name


def test_a_rung_is_followed_at_once_by_what_it_did(cells):
    """A check's cell shows a figure or prints a number, or the next cell does; a guess may come between."""
    checks = [at for at, cell in enumerate(cells) if ".check(" in cell.source]
    for at in checks:
        shown = [output for cell in cells[at : at + 2] for output in cell.get("outputs", [])]
        printed = "".join(output.get("text", "") for output in shown)
        figures = [output for output in shown if "Figure: " in output.get("data", {}).get("text/plain", "")]
        assert figures or re.search(r"\d", printed), cells[at].source


def test_a_configuration_has_few_keys(cells):
    for text in sources(cells, "given"):
        for config in re.findall(r"^CONFIG = \{\n.*?^\}", text, re.M | re.S):
            assert len(re.findall(r'"\w+":', config)) <= KEYS, config


def test_no_verdict_on_a_fault_depends_on_a_tolerance(number, cells):
    sentences = [
        output.get("data", {}).get("text/plain", "") for cell in cells for output in cell.get("outputs", [])
    ]
    caught = [sentence for sentence in sentences if "Caught by: " in sentence]
    assert bool(caught) != (number in NOTHING_TO_COMPARE)
    assert not any("depends on the tolerance" in sentence for sentence in caught)
