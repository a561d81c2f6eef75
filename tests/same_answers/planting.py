"""Plant a mistake in a lesson, and see whether the lesson's own check notices it.

A lesson says "the same answer" many times.  A check that says so of a wrong answer is worth nothing: the
losses of Adam hardly change when all gradients are twice as large.  Each `Mistake` edits one cell.  The cells
that depend on it run again, and what the last of them prints must change.
"""

import contextlib
import re
from dataclasses import dataclass

import nbformat
from nbclient import NotebookClient
from helpers.course.syllabus.outline import beside, notebooks, number_of
from tests.same_answers.slicing import needed


@dataclass(frozen=True)
class Mistake:
    """An edit of a lesson that makes its answer wrong.

    Attributes:
        name: what is done wrong, in words.
        old, new: text that stands in one cell of the lesson, once, and what to write instead.
        again: for every cell to run again afterwards, in order, text that stands in it; the last one checks.
        wrong: a regular expression for what the last cell must print now, and does not print for the right
            answer.
    """

    name: str
    old: str
    new: str
    again: tuple[str, ...]
    wrong: str


def standing_in(edited, source):
    """A cell's text; behind a check, what a folded cell defines takes the place of the course's own answer,
    which a check takes from its module."""
    return with_solutions(source) if "solution" in edited.metadata.get("tags", []) else source


def with_solutions(source):
    names = re.findall(r"^(\w+) = exercises\.\w+\.check\(", source, re.MULTILINE)
    return source + "".join(f"\n{name} = {name}_solution" for name in names)


class Lesson:
    """A lesson, or a companion ("more/06"), in a kernel of its own, in which the cells have run that its
    mistakes and checks need."""

    def __init__(self, number, mistakes):
        path = next(path for path in [*notebooks(), *beside()] if number_of(path) == number)
        self.notebook = nbformat.read(path, as_version=4)
        self.code = [
            (index, cell) for index, cell in enumerate(self.notebook.cells) if cell.cell_type == "code"
        ]
        self.client = NotebookClient(
            self.notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}
        )
        places = [index for index, _ in self.code]
        texts = {text for mistake in mistakes for text in (mistake.old, *mistake.again)}
        targets = {places.index(self.cell(text)[0]) for text in texts}
        wanted = needed([with_solutions(cell.source) for _, cell in self.code], targets)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.client.setup_kernel())
            for index, cell in map(self.code.__getitem__, wanted):
                self.client.execute_cell(cell, index)
            self.stack = stack.pop_all()
        self.planted = []  # cells of the last mistake, to be run as they are before the next one

    def close(self):
        self.stack.close()

    def cell(self, text):
        """(index, cell) of the only code cell in which a text stands."""
        found = [(index, cell) for index, cell in self.code if text in cell.source]
        assert len(found) == 1, f"{text!r} stands in {len(found)} cells"
        return found[0]

    def run(self, index, source):
        """What code prints in the place of a cell, as one text."""
        cell = nbformat.v4.new_code_cell(source, metadata=self.notebook.cells[index].metadata)
        before, self.notebook.cells[index] = self.notebook.cells[index], cell
        try:
            self.client.execute_cell(cell, index)
        finally:
            self.notebook.cells[index] = before
        return printed(cell)

    def check(self, mistake):
        """What the check printed for the right answer, what it prints for the mistaken one, and whether it
        tells them apart.  The mistake stays until the next one, since the right cells take as long again."""
        cells = [self.cell(text) for text in mistake.again]
        place, edited = self.cell(mistake.old)
        assert edited.source.count(mistake.old) == 1, mistake.old
        for index, cell in self.planted:
            self.run(index, cell.source)
        self.planted = [(place, edited), *cells]
        self.run(place, edited.source.replace(mistake.old, mistake.new))
        again = [(index, standing_in(edited, cell.source)) for index, cell in cells if index != place]
        wrong = [self.run(index, source) for index, source in again][-1]
        right = printed(cells[-1][1])
        return right, wrong, not re.search(mistake.wrong, right) and bool(re.search(mistake.wrong, wrong))


def printed(cell):
    """The texts of a cell's outputs, as one."""
    return "".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs
    )
