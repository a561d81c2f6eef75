"""Execute lessons, what stands beside them, and the start page in fresh kernels and store their outputs:
`python tests/refresh.py [02 | more/02 | claims | demo | index]`.  The demo shows all figures to play with.

What follows from a lesson follows here: its minutes in the README, and the start page.

Outputs are those of the run; what varies without meaning (execution times, kernel versions, this machine's
paths, the display that a progress line leaves empty) is taken out.
"""

import os
import re
import sys
import time

import nbformat
from nbclient import NotebookClient
from helpers.course.lesson import index
from helpers.course.lesson.copies import INDEX, LANGUAGE
from helpers.course.recording.on_machines import RECORDING
from helpers.course.syllabus import minutes
from helpers.course.syllabus.outline import beside, course, notebooks, number_of
from helpers.paths import NOTEBOOKS, ROOT

DEMO = ROOT / "tests/play/demo.ipynb"
KEPT_METADATA = ("tags", "jupyter")
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": LANGUAGE,
}


def clean(notebook, number):
    """Take out what varies; cells are numbered, so that a diff shows what changed."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for at, cell in enumerate(notebook.cells):
        cell.id = f"{number.replace('/', '-')}-{at:03}"
        cell.metadata = nbformat.from_dict(
            {name: cell.metadata[name] for name in KEPT_METADATA if name in cell.metadata}
        )
        if cell.cell_type == "code":
            cell.outputs = joined(
                [without_paths(output) for output in cell.outputs if output.get("data") != {}]
            )
    return notebook


def joined(outputs):
    """Texts that were printed one after the other become one, whenever they were sent."""
    kept = []
    for output in outputs:
        if kept and output.output_type == "stream" == kept[-1].output_type and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def without_paths(output):
    if "metadata" in output:
        output.metadata = nbformat.from_dict({})
    if output.output_type == "error":
        output.traceback = [
            re.sub(rf"(~|{re.escape(str(ROOT.parent))})[^\s:]*?/(?=helpers/|{ROOT.name}/)", "", line)
            for line in output.traceback
        ]
        output.traceback = [
            line.replace(f"{ROOT}/", "").replace(f"{ROOT.name}/", "") for line in output.traceback
        ]
    return output


def refresh(path):
    if path in notebooks():  # its minutes depend on its cells, and stand in one of them
        minutes.write_row(path)
    notebook = nbformat.read(path, as_version=4)
    if path.name == INDEX:
        draw_map(notebook)
    number = number_of(path)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    nbformat.write(clean(notebook, number), path)


def draw_map(notebook):
    """The start page's pictures and texts are made anew from the lessons, in the order of the cells with
    these tags."""
    index.draw(NOTEBOOKS, course())
    drawn = {tag: iter(texts) for tag, texts in index.texts(course()).items()}
    for cell in notebook.cells:
        for tag in drawn.keys() & set(cell.metadata.get("tags", [])):
            cell.source = next(drawn[tag])


def main(number=""):
    pages = [*notebooks(), *beside(), DEMO, NOTEBOOKS / INDEX]
    chosen = [path for path in pages if number in ("", number_of(path))]
    if not chosen:
        sys.exit(f"no lesson {number!r}")
    os.environ[RECORDING] = "yes"  # what a lesson shows of machines is written down too
    for path in chosen:
        started = time.monotonic()
        refresh(path)
        print(f"{path.relative_to(ROOT)}: executed in {time.monotonic() - started:.0f} s", flush=True)
    minutes.main()
    if NOTEBOOKS / INDEX not in chosen:
        refresh(NOTEBOOKS / INDEX)
        print(f"{INDEX}: follows")


if __name__ == "__main__":
    main(*sys.argv[1:2])
