"""The rules that stored notebooks keep."""

import html
import re

import nbformat
import pytest
from helpers.course.lesson.copies import INDEX, LANGUAGE
from helpers.course.plots.style import picture
from helpers.course.syllabus.outline import beside, companion_of, notebooks, number_of
from helpers.paths import MORE, NOTEBOOKS

LONGEST_CELL, LONGEST_TEXT = 20, 130  # lines of code, words
LARGEST = 800_000  # bytes of a notebook
NOISE = re.compile(r"UserWarning|FutureWarning|DeprecationWarning|\[W\d{3,} |/home/|/root/|/tmp/|/work/")
VERDICT = re.compile("(?:[✓✗○] )?(correct|not yet|not written yet)")
IGNORED = {"nbval-ignore-output", "nbval-skip"}
WIDEST = 110  # columns of code and of what is printed, as a laptop shows beside JupyterLab's file browser
BAR = re.compile(r"([\d.,]*\d) (?:bytes|kB|MB|GB|TB|milliseconds|%)")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def said(cell):
    return "\n".join(
        [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    )


@pytest.fixture(params=notebooks(), ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


@pytest.fixture(params=[*notebooks(), *beside()], ids=number_of)
def stored(request):
    """A lesson, or what stands beside the lessons: a companion, the page of claims."""
    return nbformat.read(request.param, as_version=4)


@pytest.fixture(params=[*notebooks(), *beside(), NOTEBOOKS / INDEX], ids=number_of)
def page(request):
    """What the course stores, the start page too."""
    return nbformat.read(request.param, as_version=4)


def test_cells_are_short(page):
    for cell in page.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and "solution" not in tags:
            assert len(cell.source.splitlines()) <= LONGEST_CELL, cell.source
        if cell.cell_type == "markdown" and not {"job", "table"} & set(tags):  # made, on the start page
            assert len(cell.source.split()) <= LONGEST_TEXT, cell.source


@pytest.mark.parametrize("path", notebooks(), ids=number_of)
def test_at_most_a_quarter_of_the_cells_are_not_compared(path):
    """Of a lesson, and of a lesson with its companion."""
    cells, pages = [], [one for one in (path, companion_of(path)) if one.exists()]
    for one in pages:
        cells += code_cells(nbformat.read(one, as_version=4))
        ignored = [cell for cell in cells if IGNORED & set(cell.metadata.get("tags", []))]
        assert 4 * len(ignored) <= len(cells)


def test_outputs_are_those_of_one_clean_run(page):
    counts = [cell.execution_count for cell in code_cells(page)]
    assert counts == list(range(1, len(counts) + 1))
    for cell in code_cells(page):
        assert not NOISE.search(said(cell)), said(cell)
        assert not any(output.get("name") == "stderr" for output in cell.outputs)
        assert all(output.get("data") != {} for output in cell.outputs)


def figures_of(notebook):
    shown = [output.data for cell in code_cells(notebook) for output in cell.outputs if "data" in output]
    assert not any("image/png" in data for data in shown)
    return [data for data in shown if "text/html" in data and picture(data["text/html"])]


def test_a_lesson_has_a_figure(notebook):
    assert figures_of(notebook)


def test_every_figure_has_its_sentence(stored):
    """As text, which is compared; and in a figure, as alternative text and caption.  No picture stands
    beside, which nobody could hear."""
    for figure in figures_of(stored):
        said = html.escape(" ".join(figure["text/plain"].split()))
        assert (
            said.startswith("Figure: ")
            and f'<img alt="{said}"' in figure["text/html"]
            and f">{said}</figcaption>" in figure["text/html"]
        )


def test_it_is_small_enough_to_be_shown_on_the_web(request, stored):
    path = request.node.callspec.params["stored"]
    assert path.stat().st_size < LARGEST


def test_one_title_and_no_skipped_level(page):
    text = "\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")
    levels = [
        len(marks) for marks in re.findall(r"^(#+) ", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M)
    ]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(following <= level + 1 for level, following in zip(levels, levels[1:]))


def test_nothing_varies_in_the_metadata(page):
    for cell in page.cells:
        assert set(cell.metadata) <= {"tags", "jupyter"}
    assert set(page.metadata) == {"kernelspec", "language_info"} and page.metadata.language_info == LANGUAGE


def test_the_cells_of_optional_sections_are_tagged_and_no_others(notebook):
    """A section goes from its heading to the next of the same or a higher level that is not optional."""
    within, unlike = None, []  # within: the level of the optional section's heading
    for at, cell in enumerate(notebook.cells):
        text = re.sub(r"```.*?```", "", cell.source, flags=re.S) if cell.cell_type == "markdown" else ""
        for marks, title in re.findall(r"^(#+) (.+)$", text, flags=re.M):
            if within is None or len(marks) <= within:
                within = len(marks) if re.search(r"\bOptional\b", title) else None
        if ("optional" in cell.metadata.get("tags", [])) != (within is not None):
            unlike.append((at, cell.source[:60]))
    assert not unlike


@pytest.mark.parametrize("path", [*notebooks(), *beside()], ids=number_of)
def test_an_error_is_shown_and_stops_nothing(path):
    """Neither Run All, nor a script made with nbconvert; JupyterLab's table of contents would mark it as an
    accident."""
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert "raises-exception" not in cell.metadata.get("tags", []), "use `with expected_error():`"
        assert not any(output.output_type == "error" for output in cell.outputs)


@pytest.mark.parametrize("path", [*notebooks(), *beside()], ids=number_of)
def test_solutions_are_folded_with_what_their_checks_say(path):
    solutions = [
        cell
        for cell in nbformat.read(path, as_version=4).cells
        if "solution" in cell.metadata.get("tags", [])
    ]
    assert all(cell.metadata.jupyter == {"source_hidden": True, "outputs_hidden": True} for cell in solutions)


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_lesson_ends_with_links_to_its_companion_the_next_and_the_map(path):
    numbered = [one for one in notebooks() if number_of(one).isdigit()]
    following = (
        numbered[numbered.index(path) + 1 :][:1] if path in numbered else []
    )  # appendices stand by themselves
    links = re.findall(r"\]\((.+?)\)", nbformat.read(path, as_version=4).cells[-1].source)
    more = [companion_of(path)] if companion_of(path).exists() else []
    assert links == [*(one.relative_to(NOTEBOOKS).as_posix() for one in [*more, *following]), INDEX]


def verdicts_of(notebook):
    lines = ((cell, line) for cell in code_cells(notebook) for line in said(cell).splitlines())
    return [(cell, line) for cell, line in lines if VERDICT.match(line)]


def test_a_lesson_has_three_exercises(notebook):
    assert len(verdicts_of(notebook)) >= 3


def test_exercises_are_stored_as_not_written_yet_and_solutions_as_correct(stored):
    for cell, line in verdicts_of(stored):
        right = "solution" in cell.metadata.get("tags", [])
        assert (VERDICT.match(line)[1] == "correct") == right, line


def test_code_and_what_it_prints_are_no_wider_than_a_laptop_shows(stored):
    for cell in code_cells(stored):
        printed = "\n".join(output.get("text", "") for output in cell.outputs).splitlines()
        wide = [line for line in [*cell.source.splitlines(), *printed] if len(line) > WIDEST]
        assert not wide, wide


def test_cells_import_the_helpers_from_one_place(page):
    """`from helpers import ...`, and the lesson's exercises; inner rooms are not a learner's concern."""
    for cell in code_cells(page):
        for line in re.findall(r"^\s*((?:from|import) helpers\S*)", cell.source, flags=re.M):
            assert line in ("from helpers", "from helpers.course.exercises"), cell.source


def test_no_figures_bars_are_all_equal(stored):
    """Such a figure is a sentence."""
    for cell in code_cells(stored):
        for sentence in (
            output.data["text/plain"]
            for output in cell.outputs
            if output.get("data", {}).get("text/plain", "").startswith("Figure: ")
        ):
            heights = [float(number.replace(",", "")) for number in BAR.findall(sentence)]
            assert len(heights) < 2 or max(heights) > 1.02 * min(heights), sentence


def test_a_learner_guesses_builds_and_finds_what_to_read(notebook):
    code, text = (
        "\n".join(cell.source for cell in notebook.cells if cell.cell_type == kind)
        for kind in ("code", "markdown")
    )
    assert len(re.findall(r"exercises\.guess\(", code)) >= 3
    assert re.search(r"^(\w+) = exercises\.\1\.check\(", code, re.M), (
        "no build: an exercise whose result the rest of the lesson uses"
    )
    assert "](https://" in text


def test_a_core_with_a_companion_has_nothing_optional():
    for path in notebooks():
        if companion_of(path).exists():
            cells = nbformat.read(path, as_version=4).cells
            assert not [cell for cell in cells if "optional" in cell.metadata.get("tags", [])]
            headings = re.findall(
                r"^#+ .+", "\n".join(cell.source for cell in cells if cell.cell_type == "markdown"), re.M
            )
            assert not [heading for heading in headings if re.search(r"\bOptional\b", heading)]


def text_of(path):
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("path", [*notebooks(), *beside()], ids=number_of)
def test_every_link_leads_somewhere_and_a_companions_to_its_lesson(path):
    links = [
        link for link in re.findall(r"\]\(([^)\s]+)\)", text_of(path)) if not link.startswith("https://")
    ]
    assert path not in map(companion_of, notebooks()) or f"../{path.name}" in links
    for link in links:
        file, _, place = link.partition("#")
        titles = re.findall(r"^#+ (.+)$", text_of(path.parent / file), re.M)
        places = [re.sub(r"[`*]", "", title).replace(" ", "-") for title in titles]  # as JupyterLab does
        assert not place or place in places, link


@pytest.mark.parametrize("path", [*notebooks(), *beside()], ids=number_of)
def test_a_link_into_a_section_of_a_companion_names_the_section(path):
    """JupyterLab opens a notebook at its top, whatever the link says: its parts are not drawn yet."""
    for words, title in re.findall(rf"\[([^\]]*)\]\({MORE}/[^)#\s]*#([^)\s]+)\)", text_of(path)):
        shown = re.sub(r"[`*]", "", words).replace(" ", "-")
        assert title.lower() in shown.lower(), f"name {title!r} in [{words}]"
