"""Docstrings of the tools as pages show them."""

import re

SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:", "Yields:")
OUTSIDE_CODE = re.compile(r"(``?[^`]*``?)|([*|]|_(?=\W|$))")


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
    app.connect("autodoc-process-docstring", as_text, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
