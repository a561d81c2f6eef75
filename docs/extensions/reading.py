"""A cell as somebody reads it who runs nothing: no verdict on an answer that nobody gave, what was to be
guessed behind a fold, code that only shows something folded, and a figure's description on demand."""

import ast
import re

UNWRITTEN, UNGUESSED = "not written yet", "You made no guess. It is"
PICTURE = "<figure"
# The description of a figure to play with stays, since it says what the reader's choice did.
CAPTION = re.compile(r'(<figcaption) aria-hidden="true"([^>]*>)(.*?)(</figcaption>)', re.DOTALL)
FOLDED = r"\1\2<details><summary>Description</summary>\3</details>\4"
ANSWER = "answer"
OPEN = '<details class="answer"><summary>Reveal the answer</summary>'
SET_UP = "<details><summary>Show the set-up</summary>"
CLOSE = "</details>"
ASKS = re.compile(r"#|(?:(?!\n\n).)*\*\*Guess", re.DOTALL)  # a heading, or a paragraph with the next question
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def cells_of(cell: dict) -> list[dict]:
    """A code cell as one or two of the site: its code, and what was to be guessed before it is read."""
    outputs = [as_read(output) for output in cell["outputs"] if UNWRITTEN not in said(output)]
    cell["outputs"] = outputs
    if "solution" in cell["metadata"]["tags"]:
        fold(cell, "hide-input", "the solution")
    elif only_shows(cell["source"], outputs):
        fold(cell, "hide-input", "the code")
    if not any(UNGUESSED in said(output) for output in outputs):
        return [cell]
    answer = cell | {"id": f"{cell['id']}-answer", "metadata": {"tags": [ANSWER, "remove-input"]}}
    answer["outputs"] = [answered(output) for output in outputs]
    return [cell | {"outputs": []}, answer]


def set_up_folded(cells: list[dict]) -> list[dict]:
    """The cells, with the code of a companion's set-up behind one fold: the lesson has shown most of it."""
    begins = [at for at, cell in enumerate(cells) if cell["source"].startswith("## Set-up")]
    if not begins:
        return cells
    first = begins[0] + 1
    last = next(
        at for at in range(first, len(cells)) if cells[at]["source"].startswith("#") and is_text(cells[at])
    )
    return [
        *cells[:first],
        text("set-up", SET_UP),
        *cells[first:last],
        text("set-up-end", CLOSE),
        *cells[last:],
    ]


def is_text(cell: dict) -> bool:
    return cell["cell_type"] == "markdown"


def behind_folds(cells: list[dict]) -> list[dict]:
    """The cells with every answer behind a fold, and with it the paragraph below that explains it."""
    shown = []
    for number, cell in enumerate(cells):
        if ANSWER not in cell["metadata"]["tags"]:
            shown.append(cell)
            continue
        below = cells[number + 1] if number + 1 < len(cells) else cell
        why = ""
        if is_text(below) and not ASKS.match(below["source"]):
            why, _, below["source"] = below["source"].partition("\n\n")
        shown += [text(f"{cell['id']}-open", OPEN), cell, text(f"{cell['id']}-close", f"{why}\n\n{CLOSE}")]
    return shown


def text(name: str, words: str) -> dict:
    """A cell of text."""
    return {"cell_type": "markdown", "id": name, "metadata": {"tags": []}, "source": words}


def fold(cell: dict, tag: str, what: str) -> None:
    """Put a part of a cell behind a line to click on."""
    cell["metadata"]["tags"].append(tag)
    cell["metadata"]["mystnb"] = {"code_prompt_show": f"Show {what}", "code_prompt_hide": f"Hide {what}"}


def only_shows(source: str, outputs: list[dict]) -> bool:
    """Whether code has nothing to read: one call of a check, or calls that end in a figure and neither define
    a function nor write down a configuration, whose name is in capitals."""
    parts = ast.parse(source).body
    if len(parts) == 1 and ".check(" in source:
        return True
    written = [part for part in parts if isinstance(part, DEFINES)]
    names = [name.id for part in parts if isinstance(part, ast.Assign) for name in named(part)]
    figure = any(PICTURE in "".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    return figure and not written and not any(name.isupper() for name in names)


def named(part: ast.Assign) -> list[ast.Name]:
    return [target for target in part.targets if isinstance(target, ast.Name)]


def said(output: dict) -> str:
    """The plain text of an output."""
    return "".join(output.get("text", output.get("data", {}).get("text/plain", "")))


def as_read(output: dict) -> dict:
    """An output whose figure keeps its description folded; a screen reader has it as the picture's text."""
    return changed(output, lambda text: CAPTION.sub(FOLDED, text))


def answered(output: dict) -> dict:
    """An output that answers a reader, who may have guessed."""
    return changed(output, lambda text: text.replace(UNGUESSED, "The answer is"))


def changed(output: dict, how) -> dict:
    """An output with its HTML changed."""
    if page := "".join(output.get("data", {}).get("text/html", "")):
        output["data"]["text/html"] = how(page)
    return output
