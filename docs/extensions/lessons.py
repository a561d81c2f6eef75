"""What a source needs to be a page of the site: a lesson's number, folded solutions, the companion below its
lesson in the contents, and links to files of the repository that are no pages."""

import json
import re
from pathlib import Path

RAW_LINK = re.compile(r'(<a href="[^":]+)\.ipynb')  # within HTML, which is not parsed
REPOSITORY_FILE = re.compile(r"\]\(\.\./(?!notebooks/)([^)]+)\)")

CONTENTS = "```{{toctree}}\n:hidden:\n\n{}\n```"


def slug(heading):
    """The anchor of a heading, as JupyterLab makes it."""
    return heading.replace(" ", "-")


def as_page(app, name, source):
    """Change the text of a page before it is parsed."""
    path = Path(app.env.doc2path(name))
    if path.suffix != ".ipynb":
        url = f"{app.config.html_theme_options['source_repository']}/blob/main/"
        source[0] = REPOSITORY_FILE.sub(lambda match: f"]({url}{match[1]})", source[0])
        return
    notebook = json.loads(source[0])
    # Progress is a learner's own.
    notebook["cells"] = [
        one for one in notebook["cells"] if "progress" not in one["metadata"].get("tags", [])
    ]
    for cell in notebook["cells"]:
        tags = cell["metadata"].setdefault("tags", [])
        if "solution" in tags:
            tags.append("hide-input")
        if cell["cell_type"] == "markdown":
            cell["source"] = RAW_LINK.sub(r"\1.html", "".join(cell["source"]))
    if path.name[:2].isdigit() and path.parent.name == "notebooks":
        opening = notebook["cells"][0]
        opening["source"] = "".join(opening["source"]).replace("# ", f"# {path.name[:2]} ", 1)
    companion = path.parent / "more" / path.name
    if companion.exists():
        text = CONTENTS.format(f"more/{path.stem}")
        cell = {"cell_type": "markdown", "id": "companion", "metadata": {}, "source": text}
        notebook["cells"].append(cell)
    source[0] = json.dumps(notebook)


def setup(app):
    app.connect("source-read", as_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
