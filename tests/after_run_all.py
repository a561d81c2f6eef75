"""Every exercise once more after a lesson's last cell, in its kernel, as somebody does it who has run all
cells before: no later cell may break it.

What is checked is the course's solution under the learner's name, defined then, so that it finds the names of
the notebook as the last cell left them.  Of a check in ranks the first world size runs: that a right answer
is right in all of them was seen when the cells ran in order.
"""

import re
from collections import defaultdict
from importlib import import_module

from nbformat.v4 import new_code_cell

CHECK = re.compile(r"^(?:\w+ = )?exercises\.(\w+)\.check\(.*\)$", re.M)
NAME = re.compile(r"^(?:def|class) (\w+)_solution\b", re.M)
SUBJECT = re.compile(r"^from helpers\.course\.exercises import (\w+) as exercises$", re.M)
AGAIN = """{answer}

from IPython.utils.capture import capture_output

with capture_output() as said:
    object.__setattr__(exercises.{exercise}, "worlds", getattr(exercises.{exercise}, "worlds", [])[:1])
    exercises.{exercise}.check({name})
words = said.stdout + "".join(str(output.data.get("text/plain", "")) for output in said.outputs)
assert "✓ correct" in words, words"""


def after_run_all(notebook):
    """{exercise: source of a cell that does it again}."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    exercise_of, found = {}, {}
    for subject in SUBJECT.findall("\n".join(code)):
        lesson = import_module(f"helpers.course.exercises.{subject}")
        checks = CHECK.findall("\n".join(code))
        exercise_of = {getattr(lesson, exercise).name: exercise for exercise in checks}
    for source in code:
        for name in filter(exercise_of.get, NAME.findall(source)):
            own = re.sub(rf"\b({'|'.join(NAME.findall(source))})_solution\b", r"\1", source)
            found[exercise_of[name]] = AGAIN.format(answer=own, exercise=exercise_of[name], name=name)
    return found


def with_exercises_again(items):
    """The collected tests, and behind the last cell of each lesson whose outputs are compared its
    exercises."""
    last = {
        item.parent: item
        for item in items
        if type(item).__name__ == "IPyNbCell" and item.parent.compare_outputs
    }
    for item in items:
        yield item
        if last.get(item.parent) is item:
            for exercise, source in after_run_all(item.parent.nb).items():
                options = defaultdict(bool, check=False)
                name, number = f"{exercise} after Run All", item.cell_num + 1
                yield type(item).from_parent(
                    item.parent, name=name, cell_num=number, cell=new_code_cell(source), options=options
                )
