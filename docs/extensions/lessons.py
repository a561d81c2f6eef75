"""What a source needs to be a page of the site: a lesson's number, cells as a reader needs them, the
companion below its lesson in the contents, and links to files of the repository that are no pages."""

import json
import re
from pathlib import Path

from reading import behind_folds, cells_of, set_up_folded, text
from helpers.course.lesson import pictures
from helpers.course.syllabus.outline import course

RAW_LINK = re.compile(r'(<a href="[^":]+)\.ipynb')  # within HTML, which is not parsed
REPOSITORY_FILE = re.compile(r"\[([^\]]*)\]\(\.\./(?!notebooks/)([^)]+)\)")
CONTENTS = "```{{toctree}}\n:hidden:\n:titlesonly:\n{}\n```"
LESSONS = "<!-- the lessons -->"  # where the start page's contents have them
SAID_TO_A_LEARNER = {  # who runs cells and passes checks: what a reader is told instead
    r"Run (?:these cells|this cell|the first (?:code )?cell)(?: first)?[;.] then each": "Each",
    r"\(Did your cell say something else\?[^)]*\) ": "",
    r" A click on the grey line that ends in ••• opens a solution\.": "",
    r"Run the next cell: it shows.*": "",
}
COPIES = "## Your copies"  # a section of the map


def slug(heading):
    """The anchor of a heading, as JupyterLab makes it."""
    return heading.replace(" ", "-")


def contents(lessons):
    """A list of contents for each part of the course, with short titles."""
    parts = pictures.parts(lessons).items()
    shown = ["\n".join([f":caption: {part}", "", *map(entry, inside)]) for part, inside in parts]
    return "\n\n".join(map(CONTENTS.format, shown))


def entry(lesson):
    """A line of the contents."""
    number = f"{lesson.number} " if lesson.number.isdigit() else ""
    return f"{number}{lesson.title} <notebooks/{Path(lesson.file).stem}>"


def as_page(app, name, source):
    """Change the text of a page before it is parsed."""
    path = Path(app.env.doc2path(name))
    if path.suffix != ".ipynb":
        repository = app.config.html_theme_options.get("source_repository")

        def link(match):
            words, file = match[1], match[2]
            if Path(path.parent, "..", file).exists():
                return match[0]
            return f"[{words}]({repository}/blob/main/{file})" if repository else words

        if LESSONS in source[0]:
            source[0] = source[0].replace(LESSONS, contents(course()))
        source[0] = REPOSITORY_FILE.sub(link, source[0])
        return
    notebook = json.loads(source[0])
    cells = [shown for cell in notebook["cells"] for shown in for_readers(cell)]
    notebook["cells"] = behind_folds(set_up_folded(cells))
    if path.name[:2].isdigit() and path.parent.name == "notebooks":
        opening = notebook["cells"][0]
        opening["source"] = opening["source"].replace("# ", f"# {path.name[:2]} ", 1)
    companion = path.parent / "more" / path.name
    if companion.exists():
        notebook["cells"].append(text("companion", CONTENTS.format(f"\nmore/{path.stem}")))
    source[0] = json.dumps(notebook)


def for_readers(cell):
    """What becomes of a cell; nothing where it is about a learner's own work."""
    cell["source"] = words = "".join(cell["source"])
    tags = cell["metadata"].setdefault("tags", [])
    if "progress" in tags or words.startswith(COPIES):
        return []
    if cell["cell_type"] == "code":
        return cells_of(cell)
    for said, instead in SAID_TO_A_LEARNER.items():
        words = re.sub(said, instead, words, flags=re.IGNORECASE)
    cell["source"] = RAW_LINK.sub(r"\1.html", words)
    return [cell]


def setup(app):
    app.connect("source-read", as_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
