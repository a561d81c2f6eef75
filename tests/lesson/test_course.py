"""The map: read from the lessons, the same in the start page and in the README; minutes by one rule."""

import json
import re
from dataclasses import replace

import nbformat
import pytest
from helpers import job
from helpers.course.lesson import index, pictures
from helpers.course.syllabus import minutes, routes
from helpers.course.syllabus.counting import Minutes, minutes_of
from helpers.course.syllabus.outline import (
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


OPENING = "# A\n\n**The question:** why?\n\n| | |\n|---|---|\n| Minutes | ? |\n| Needs | lesson 00 |"


def a_lesson(number, *needs, checks=("one", "two"), core=30):
    return Lesson(
        number, f"{number}_x.ipynb", f"Lesson {number}", "Why?", Minutes(core, 10, 5), 0, needs, checks
    )


THREE = [a_lesson("00"), a_lesson("01", "00"), a_lesson("02", "00", checks=())]


def cell(text, kind="code", **metadata):
    return {"cell_type": kind, "source": text, "metadata": metadata}


def write(path, *cells):
    """A notebook of these cells; of a text it makes one."""
    cells = [cell(one, "markdown") if isinstance(one, str) else one for one in cells]
    path.write_text(json.dumps({"cells": cells}))


def test_an_opening_is_read(tmp_path):
    opening = "# ZeRO-1: who?\n\n**The question:** what is saved?\n\n| Needs | lessons 00 to 02, and 04 |"
    code = ["exercises.a.check(a)", "b = exercises.b.check(b)", "a = exercises.a.check(a)"]
    path = tmp_path / "07_zero_1.ipynb"
    write(path, opening, *map(cell, code))
    expected = Lesson(
        "07", path.name, "ZeRO-1", "What is saved?", Minutes(0, 0, 0), 0, ("00", "01", "02", "04"), ("a", "b")
    )
    assert read(path) == expected


def test_a_minute_is_120_words_a_line_or_two_cells_and_what_an_exercise_states():
    def solution(lines):
        return cell("def f():\n    # why\n" + "    x = 1\n" * lines, tags=["solution"])

    given = [cell("x = 1")] * 10
    stubs = [cell("def f():\n    ...  # your code"), cell("f = exercises.f.check(f)")]
    text = cell("word " * 1199 + "*Difficulty 1 of 5, 9 minutes.*", "markdown")  # of no exercise
    exercises = cell("## Exercises\n\n*Difficulty 2 of 5, 7 minutes.* " + "word " * 600, "markdown")
    core = [text, *given, *stubs, solution(14)]
    assert minutes_of(core) == Minutes(10 + 5 + 1 + 14, 15, 0)
    assert minutes_of([*core, exercises, *given, solution(9)]) == Minutes(30, 15, 7)
    assert minutes_of([text, text]).core == 20 and minutes_of(given * 4).core == 20
    assert minutes_of([solution(20)]) == Minutes(20, 20, 0)


@pytest.mark.parametrize("path", notebooks(NOTEBOOKS), ids=number_of)
def test_a_lesson_states_the_minutes_of_the_rule(path):
    assert read(path).minutes.row() in nbformat.read(path, as_version=4).cells[0].source.splitlines(), (
        f"run `python -m helpers.course.syllabus.minutes {number_of(path)}`"
    )


def test_the_row_of_a_lesson_is_written_and_nothing_else(tmp_path):
    path = tmp_path / "07_a.ipynb"
    write(path, OPENING, "| Minutes | of another table |", cell("x = 1", tags=["solution"]))
    before = path.read_text()
    minutes.write_row(path)
    row = "| Minutes | 0 core (0 of them writing), 0 exercises |"
    assert path.read_text() == before.replace("| Minutes | ? |", row)


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
    assert lesson.minutes.exercises, "under `## Exercises` each exercise says `Difficulty 2 of 5, 10 minutes`"


@pytest.mark.parametrize("path", notebooks(NOTEBOOKS), ids=number_of)
def test_minutes_of_a_companion_are_the_sum_of_its_sections(path):
    if companion_of(path).exists():
        assert sum(minutes_of_sections(companion_of(path))) == read(path).optional > 0


def minutes_of_sections(path):
    """Of each section of a companion, from the line under its heading; of the set-up none."""
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for heading, begin in re.findall(r"^(##+ .*)\n+(.*)", text, re.M):
        minutes = re.match(r"\*(?:Difficulty \d of 5, )?(\d+) minutes?[.,;]", begin)
        assert minutes or heading.startswith(("###", "## Set-up")), f"no minutes `*5 minutes.*`: {heading}"
        yield int(minutes[1]) if minutes else 0


def test_a_lesson_has_the_minutes_and_checks_of_its_companion(tmp_path):
    (tmp_path / "more").mkdir()
    for name, *cells in [
        ("07_a.ipynb", OPENING, cell("exercises.a.check(a)")),
        ("more/07_a.ipynb", "# More on A\n\n| Minutes | 12 |", cell("exercises.b.check(b)")),
        ("more/field_guide.ipynb", "# Traps"),
        ("appendix_claims.ipynb", "# Claims"),
        ("appendix_fsdp.ipynb", OPENING),
    ]:
        write(tmp_path / name, *cells)
    lesson, other = course(tmp_path)
    assert (lesson.optional, lesson.checks, lesson.companion) == (12, ("a", "b"), "more/07_a.ipynb")
    assert (other.number, other.optional, other.companion) == ("fsdp", 0, "")
    numbers = [number_of(path) for path in beside(tmp_path)]
    assert numbers == ["more/07", "more/field_guide", "claims"]
    assert "+\N{NO-BREAK SPACE}[12](more/07_a.ipynb)|" in index.table("Basics", [lesson], {})


def test_the_start_page_holds_what_is_made_of_these_lessons():
    cells = nbformat.read(NOTEBOOKS / "index.ipynb", as_version=4).cells
    for tag, texts in index.texts(LESSONS).items():
        stored = [cell.source for cell in cells if tag in cell.metadata.get("tags", [])]
        assert stored == texts, "run `make refresh LESSON=index`"


@pytest.mark.parametrize("route", routes.ROUTES, ids=lambda route: route.time)
def test_a_route_takes_no_longer_than_it_promises_and_leads_to_what_one_can_do(route):
    promised = 60 * int(re.findall(r"\d+", route.time)[-1])
    assert promised / 2 < route.minutes(LESSONS) <= promised
    written = {lesson.number for lesson in LESSONS} if route.everything else set(route.written)
    for lesson in LESSONS:
        assert lesson.number not in written or set(lesson.needs) <= written
    named = re.findall(r"\d\d", route.take)
    assert route.everything or tuple(named) == (*route.written, *route.read)


def test_a_route_counts_what_one_does_of_each_lesson():
    lessons = [a_lesson("00"), a_lesson("01", core=50), a_lesson("02", core=70)]
    route = routes.Route("", "", "", written=("00",), read=("01",))
    assert route.minutes(lessons) == 30 + (50 - 10)
    assert routes.Route("", "", "", everything=True).minutes(lessons) == 30 + 50 + 70 + 3 * 5


def test_the_jobs_picture_has_a_bar_of_each_lesson_that_changes_it_and_its_claim_is_true():
    sentence = index.job(LESSONS).sentence
    bars = dict(re.findall(r"[.;] (\d\d) [^:;]+: .*?, [\d.]+ GB (too much|to spare)", sentence))
    fits = [number for number, verdict in bars.items() if verdict == "to spare"]
    assert list(bars) == list(index.PLANS) and fits == [number for number in bars if number >= "07"]
    one, eight = map(float, re.findall(r"if it fitted, ([\d.]+) to", sentence))
    assert 7.5 < one / eight < 8  # "nearly eight times as fast"


def test_the_map_beside_the_start_page_is_of_these_lessons():
    stored = (NOTEBOOKS / index.FOLDER / index.MAP).read_text()
    assert stored == pictures.the_map(LESSONS), "run `make refresh LESSON=index`"


def test_the_tables_hold_every_lesson_once_in_order():
    assert re.findall(r"^\|(\w+)\|\[", "\n".join(index.tables(LESSONS)), re.M) == [
        lesson.number for lesson in LESSONS
    ]


def test_the_readme_has_the_same_lessons_titles_and_minutes():
    rows = re.findall(r"^\| (\w+) \| \[(.+?)\]\(notebooks/(.+?)\) \|", README, re.M)
    assert rows == [(one.number, one.title, one.file) for one in LESSONS]
    assert minutes.in_readme(README, LESSONS) == README, "run `python -m helpers.course.syllabus.minutes`"


def test_the_minutes_of_the_readme_are_found_and_written():
    lesson = LESSONS[4]
    row = f"| 04 | [x](notebooks/{lesson.file}) | do | 7 | 9 | 20 s |"
    assert f"| do | {lesson.minutes.core} | {lesson.minutes.exercises} | 20 s |" in minutes.in_readme(
        row, LESSONS
    )


@pytest.mark.parametrize(
    "passed, number",
    [
        ({}, "00"),
        ({"00": ["one"]}, "00"),
        ({"00": ["two", "one"]}, "01"),
        ({"01": ["one"]}, "01"),
        ({"01": ["one", "two"]}, "00"),  # one that was left out before
        ({"00": ["one", "two"], "01": ["one", "two"]}, None),
        ({"00": ["a check of before"]}, "00"),
    ],
)
def test_the_next_lesson_is_the_furthest_begun_or_follows_it(passed, number):
    following = index.next_lesson(THREE, passed)
    assert (following and following.number) == number


def test_checks_of_a_companion_keep_nobody_from_the_next_lesson():
    first = replace(THREE[0], optional_checks=THREE[0].checks[-1:])
    passed = {"00": list(first.checks[:-1])}
    assert index.next_lesson([first, *THREE[1:]], passed) == THREE[1]
    assert index.next_lesson(THREE, passed) == THREE[0]


def test_progress_says_where_to_go_on_and_draws_every_lessons_spots_at_the_same_moment():
    lessons = [a_lesson("00"), a_lesson("01", "00")]
    begin = "Begin here: [00 Lesson 00](00_x.ipynb) (○ one, ○ two). In all, 0 of 4 checks are passed."
    begin += "\n\n| |lesson|checks|\n|---|---|---|"
    begin += "\n|00|[Lesson 00](00_x.ipynb)|○○ 0 of 2 **begin here**|\n|01|[Lesson 01](01_x.ipynb)|○○ 0 of 2|"
    assert index.Progress(lessons, {})._repr_markdown_() == repr(index.Progress(lessons, {})) == begin
    some = index.Progress(lessons, {"01": ["two", "gone"], "99": ["one"]})
    assert repr(some).startswith("Continue here: [01 Lesson 01](01_x.ipynb) (○ one, ● two). In all, 1 of 4")
    assert repr(some).endswith("|○○ 0 of 2|\n|01|[Lesson 01](01_x.ipynb)|○● 1 of 2 **continue here**|")
    every = {lesson.number: list(lesson.checks) for lesson in lessons}
    all_of_them = repr(index.Progress(lessons, every))
    assert all_of_them.startswith("In all, 4 of 4 checks are passed.\n") and "here" not in all_of_them


def test_the_courses_own_start_page_shows_nobodys_progress(monkeypatch):
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.setattr(index, "passed", lambda: {"00": ["sum_of_ranks"]})
    assert repr(index.progress()).startswith("Begin here: [00 ")


def test_the_readme_and_the_site_promise_what_the_lessons_and_the_job_say():
    core = sum(lesson.minutes.core for lesson in LESSONS) / 60
    fast = routes.ROUTES[0].minutes(LESSONS) / 60
    assert f"The core takes {core:.0f} hours" in README.replace("\n", " ")
    assert f"[the fast path](notebooks/index.ipynb) takes {fast:.0f}." in README
    bars = {number: float(found) for number, found in re.findall(r"(\d\d):\s([\d.]+)\sGB", index.needed())}
    torchs = job.peak("1 GPU, fused by torch") + job.stored("1 GPU, fused by torch")["outside"]
    for page in (README, (ROOT / "docs/index.md").read_text()):
        page = page.replace("\n", " ")
        for words, number in {
            r"needs (\d+) GB on every GPU\. Your card": sum(job.states("stage 0").values()) / 1e9,
            r"Your card has (\d+)\.": job.MEMORY / 1e9,
            r"asks for (\d+) GB": bars["02"],
            r"each of eight GPUs needs (\d+) GB": bars["07"],
            r"fused Adam they would be (\d+)": torchs / 1e9,
        }.items():
            assert int(re.search(words, page)[1]) == round(number), words
