"""No comparison that a lesson once verified was lost when it was rewritten: each stands in the lesson, in its
companion, or in a test."""

import tomllib
from pathlib import Path

import nbformat
import pytest
from helpers.course.syllabus.outline import beside, notebooks, number_of
from helpers.paths import ROOT

LISTS = sorted(Path(__file__).with_name("comparisons").glob("*.toml"))
PAGES = {number_of(path): path for path in [*notebooks(), *beside()]}


def text_of(place):
    """All sources and outputs of a page, or the text of a file."""
    if place not in PAGES:
        return (ROOT / place).read_text()
    found = []
    for cell in nbformat.read(PAGES[place], as_version=4).cells:
        found.append(cell.source)
        for output in cell.get("outputs", []):
            found.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(found)


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_comparison_has_a_place(path):
    lists = tomllib.loads(path.read_text())
    texts, lost = {}, []
    for name, (place, words) in (entry for part in lists.values() for entry in part.items()):
        texts.setdefault(place, text_of(place))
        lost += [name] * (words not in texts[place])
    assert not lost
