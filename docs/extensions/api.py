"""A page for each room of the tools, made from the docstrings of what it offers."""

import importlib
import re

ROOMS = {
    "launch": "Start ranks",
    "measure": "Count what they hold and send",
    "theory": "Predict it",
    "rehearsal": "Rehearse a rank",
    "machines": "Several machines on one",
}
PACKAGE = "distributed_training_measured"
SECTIONS = ("Args:", "Returns:", "Raises:", "Yields:")
OUTSIDE_CODE = re.compile(r"(``?[^`]*``?)|([*|]|_(?=\W|$))")


def write_pages(app):
    """Write `api/<room>.rst` into the sources."""
    tools, theory = (importlib.import_module(name) for name in (PACKAGE, f"{PACKAGE}.theory"))
    homes = {"launch": f"{PACKAGE}.launch.jobs"} | tools.HOMES | theory.HOMES
    rooms = {room: [] for room in ROOMS}
    for name, module in homes.items():
        thing = getattr(importlib.import_module(module), name)
        if callable(thing):
            kind = "class" if isinstance(thing, type) else "function"
            rooms[module.split(".")[1]].append((f"{module}.{name}", kind))
    folder = app.srcdir / "api"
    folder.mkdir(exist_ok=True)
    for room, names in rooms.items():
        lines = [ROOMS[room], "=" * 40, ""]
        for name, kind in names:
            lines += [f".. auto{kind}:: {name}", "   :members:" * (kind == "class"), ""]
        (folder / f"{room}.rst").write_text("\n".join(lines))


def as_text(app, what, name, of, options, lines):
    """Docstrings are plain text.  Backquotes mean code in them, sections are Google's, and what else is
    indented is shown as it stands."""
    shown, inside, said = [], False, ""
    for line in lines:
        indented = line.startswith("  ") or (bool(said) and not line)
        if indented and not inside and line and said not in SECTIONS:
            shown += ["", "::", ""]
            inside = True
        elif inside and not indented:
            shown.append("")
            inside = False
        if not line.startswith("  ") and line:
            said = line
        shown.append(line if inside else OUTSIDE_CODE.sub(escaped, line))
    lines[:] = shown


def escaped(match):
    """Code as it is; a character that would mean markup, as itself."""
    return match[1] or "\\" + match[2]


def setup(app):
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", as_text, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
