"""The map: read from the lessons, the same in the start page and in the README."""

import json
import re

import nbformat
import pytest
from helpers.course.lesson import index, pictures
from helpers.course.lesson.outline import (
    Lesson,
    beside,
    companion_of,
    course,
    directly_needs,
    notebooks,
    number_of,
    read,
)
from helpers.paths import NOTEBOOKS, ROOT

LESSONS = course()
README = (ROOT / "README.md").read_text()


def a_lesson(number, *needs, checks=("one", "two")):
    return Lesson(number, f"{number}_x.ipynb", f"Lesson {number}", "Why?", 30, 10, 0, needs, checks)


def test_an_opening_is_read(tmp_path):
    opening = (
        "# ZeRO-1: who?\n\n**The question:** what is saved?\n\n| | |\n|---|---|\n| Minutes | 60 "
        "core, 25 exercises, 10 optional |\n"
    )
    cells = [
        opening + "| Needs | lessons 00 to 02, and 04 |",
        "*Difficulty 1 of 5, 20 minutes. *",
        "*Difficulty 2 of 5, 5 minutes. *",
    ]
    cells += ["exercises.a.check(a)", "b = exercises.b.check(b)", "a = exercises.a.check(a)"]
    path = tmp_path / "07_zero_1.ipynb"
    path.write_text(json.dumps({"cells": [{"source": [text]} for text in cells]}))
    expected = Lesson(
        "07", path.name, "ZeRO-1", "What is saved?", 60, 25, 10, ("00", "01", "02", "04"), ("a", "b")
    )
    assert read(path) == expected


@pytest.mark.parametrize(
    "end, paper",
    [
        (
            "Hu et al., [LoRA](https://arxiv.org/abs/1). Ren et al., [Off](https://arxiv.org/abs/2).",
            "[LoRA](https://arxiv.org/abs/1)",
        ),
        (
            "[A](https://arxiv.org/abs/1), sections 3, 5.1 and 7. B.",
            "[A](https://arxiv.org/abs/1), sections 3, 5.1 and 7",
        ),
        ("[A](https://arxiv.org/abs/1), section 3, says it.", "[A](https://arxiv.org/abs/1), section 3"),
        (
            "[A](https://arxiv.org/1) and [B](https://doi.org/2), section 7.",
            "[A](https://arxiv.org/1) and [B](https://doi.org/2), section 7",
        ),
        (
            "PyTorch's [notes](https://docs.pytorch.org/a), [A](https://doi.org/10.1/2) (2006).",
            "[A](https://doi.org/10.1/2)",
        ),
        ("PyTorch's [notes](https://docs.pytorch.org/a).", ""),
    ],
)
def test_the_paper_is_the_first_that_the_end_cites_with_its_sections(tmp_path, end, paper):
    opening = (
        "# A\n\n**The question:** why?\n\n| | |\n|---|---|\n| Minutes | 60 core |\n| Needs | lesson 00 |"
    )
    before = "[X](https://arxiv.org/abs/9) stands elsewhere."
    (tmp_path / "07_a.ipynb").write_text(
        json.dumps(
            {"cells": [{"source": [text]} for text in (opening, before, f"**Further reading.** {end}")]}
        )
    )
    assert read(tmp_path / "07_a.ipynb").paper == paper


def test_appendices_come_last_and_are_called_by_their_names(tmp_path):
    for name in ("appendix_fsdp.ipynb", "02_training_memory.ipynb", "index.ipynb"):
        (tmp_path / name).touch()
    assert [number_of(path) for path in notebooks(tmp_path)] == ["02", "fsdp"]


def test_an_opening_without_its_rows_is_named(tmp_path):
    (tmp_path / "07_zero_1.ipynb").write_text(json.dumps({"cells": [{"source": ["# ZeRO-1"]}]}))
    with pytest.raises(ValueError, match="07_zero_1.ipynb: its first cell lacks"):
        read(tmp_path / "07_zero_1.ipynb")


def test_arrows_leave_out_what_another_need_brings_along():
    lessons = [a_lesson("00"), a_lesson("01", "00"), a_lesson("02", "00"), a_lesson("03", "00", "01", "02")]
    assert [directly_needs(lesson, lessons) for lesson in lessons] == [[], ["00"], ["00"], ["01", "02"]]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_a_lesson_needs_lessons_that_come_before_it(lesson):
    numbers = [one.number for one in LESSONS]
    assert all(need in numbers and need < lesson.number for need in lesson.needs) and lesson.checks


@pytest.mark.parametrize("path", notebooks(NOTEBOOKS), ids=lambda path: path.stem)
def test_minutes_of_the_exercises_are_the_sum_of_their_own(path):
    stated = re.search(r"(\d+) exercises", nbformat.read(path, as_version=4).cells[0].source)
    assert stated is None or int(stated[1]) == read(path).exercises


@pytest.mark.parametrize("path", notebooks(NOTEBOOKS), ids=lambda path: path.stem)
def test_minutes_of_the_optional_parts_are_the_sum_of_their_own(path):
    """A section's stand under its heading; an exercise that is optional has its minutes among the exercises';
    a function to write has its own.  In a companion every section has minutes, an exercise too."""
    if companion_of(path).exists():
        assert sum(minutes_of_sections(companion_of(path))) == read(path).optional > 0
        return
    text = "\n".join(
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"
    )
    sections = re.findall(r"^(#+ .*\bOptional\b.*)\n+(.*)", text, re.M)
    unlike = [
        head
        for head, begin in sections
        if not re.match(r"\*\d+ minutes?[.,;]|\*Difficulty \d of 5, \d+ minutes", begin)
    ]
    assert not unlike, "no minutes in the form `*5 minutes.*` under these headings"
    minutes = [re.match(r"\*(\d+) minutes?", begin) for _, begin in sections] + re.findall(
        r"\*\*Your turn \(optional, (\d+) minutes\)", text
    )
    assert (
        sum(int(found if isinstance(found, str) else found[1]) for found in minutes if found)
        == read(path).optional
    )


def minutes_of_sections(path):
    """Of each section of a companion, from the line under its heading; of the set-up none."""
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for heading, begin in re.findall(r"^(##+ .*)\n+(.*)", text, re.M):
        minutes = re.match(r"\*(?:Difficulty \d of 5, )?(\d+) minutes?[.,;]", begin)
        assert minutes or heading.startswith(("###", "## Set-up")), f"no minutes `*5 minutes.*`: {heading}"
        yield int(minutes[1]) if minutes else 0


def test_a_lesson_has_the_minutes_and_checks_of_its_companion(tmp_path):
    opening = (
        "# A\n\n**The question:** why?\n\n| | |\n|---|---|\n| Minutes | 60 core |\n| Needs | lesson 00 |"
    )
    (tmp_path / "more").mkdir()
    for name, *texts in [
        ("07_a.ipynb", opening, "exercises.a.check(a)"),
        ("more/07_a.ipynb", "# More on A\n\n| | |\n|---|---|\n| Minutes | 12 |", "exercises.b.check(b)"),
        ("more/field_guide.ipynb", "# Traps"),
        ("appendix_claims.ipynb", "# Claims"),
        ("appendix_fsdp.ipynb", opening),
    ]:
        (tmp_path / name).write_text(json.dumps({"cells": [{"source": [text]} for text in texts]}))
    lesson, other = course(tmp_path)
    assert (lesson.optional, lesson.checks, lesson.companion) == (12, ("a", "b"), "more/07_a.ipynb")
    assert (other.number, other.optional, other.companion) == ("fsdp", 0, "")
    numbers = [number_of(path) for path in beside(tmp_path)]
    assert numbers == ["more/07", "more/field_guide", "claims"]
    assert "|[12](more/07_a.ipynb)|" in index.table("Basics", [lesson])


def test_the_start_page_holds_the_map_of_these_lessons():
    texts = [cell.source for cell in nbformat.read(NOTEBOOKS / "index.ipynb", as_version=4).cells]
    assert index.diagram(LESSONS) in texts, "run `make refresh LESSON=index`"
    assert [text for text in texts if text.startswith("### ")] == index.tables(LESSONS), (
        "run `make refresh LESSON=index`"
    )


def test_the_pictures_beside_the_start_page_are_of_these_lessons_and_of_nobody(tmp_path):
    pictures.draw(tmp_path, LESSONS, {})

    def drawn(folder):
        return {path.name: path.read_text() for path in (folder / pictures.FOLDER).iterdir()}

    assert drawn(tmp_path) == drawn(NOTEBOOKS), "run `make refresh LESSON=index`"


def test_the_tables_hold_every_lesson_once_in_order():
    assert re.findall(r"^\|(\w+)\|\[", "\n".join(index.tables(LESSONS)), re.M) == [
        lesson.number for lesson in LESSONS
    ]


def test_every_lesson_has_a_paper():
    assert not [lesson.number for lesson in LESSONS if not lesson.paper], "name one under *Further reading*"


def test_the_readme_has_the_same_lessons_titles_and_minutes():
    rows = re.findall(r"^\| (\w+) \| \[(.+?)\]\(notebooks/(.+?)\) \| .+? \| (\d+) \| (\d+) \|", README, re.M)
    assert rows == [(one.number, one.title, one.file, str(one.core), str(one.exercises)) for one in LESSONS]


def test_progress_is_empty_in_words_and_then_a_table():
    lessons = [a_lesson("00"), a_lesson("01", "00")]
    assert index.Progress(lessons, {})._repr_markdown_() == repr(index.Progress(lessons, {})) == index.NOTHING
    some = index.Progress(lessons, {"01": ["two", "gone"], "99": ["one"]})
    assert repr(some) == "1 of 4 checks passed"
    assert (
        "| 01 | [Lesson 01](01_x.ipynb) ← continue here | 1 of 2 | ○ one, ✓ two |" in some._repr_markdown_()
    )
    assert "| 00 | [Lesson 00](00_x.ipynb) | 0 of 2 | ○ one, ○ two |" in some._repr_markdown_()


def test_the_courses_own_start_page_shows_nobodys_progress(monkeypatch):
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.setattr(index, "passed", lambda: {"00": ["sum_of_ranks"]})
    assert repr(index.progress()) == index.NOTHING
