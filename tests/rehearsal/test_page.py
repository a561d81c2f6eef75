"""The pages docs/rehearse.md and docs/questions.md: the example, the figures and the answers are what the
command says today."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.tools.forecast.command_line import main

DOCS = ROOT / "docs"
PAGE = (DOCS / "rehearse.md").read_text(encoding="utf-8")
LINES = PAGE.splitlines()
ANSWERS = (DOCS / "questions.md").read_text(encoding="utf-8")
QUESTIONS = json.loads((DOCS / "questions.json").read_text(encoding="utf-8"))
SECONDS = re.compile(r"^rehearsed in .*$", re.MULTILINE)  # and memory of this machine


def printed(script, *words):
    """What a script of a page prints."""
    command = [sys.executable, DOCS / script, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_other_estimators_say_is_what_the_page_says():
    rows = printed("compare_estimators.py", "--quick").splitlines()[2:]  # below the head
    assert len(rows) == 9
    for row in rows:
        assert sum(line.startswith(row) for line in LINES) == 1, row


def test_every_question_has_an_answer_on_the_page():
    threads = QUESTIONS["threads"]
    assert len(threads) >= 20
    for thread in threads:
        repository, number = thread["thread"].split("#")
        link = f"(https://github.com/{repository}/issues/{number})"
        (section,) = [section for section in ANSWERS.split("\n## ") if link in section]
        assert section.startswith(f"{thread['question']}\n")
        assert f"Known outcome: {thread['outcome']}." in section and thread["remark"] in section
        assert all(f"\n- {run['asked']}: " in section for run in thread["runs"])


def test_the_summary_of_the_questions_is_what_their_sections_say():
    table = printed("answer_questions.py", "--summary").strip()
    assert table in ANSWERS
    runs = sum(len(thread["runs"]) for thread in QUESTIONS["threads"])
    said = {word: table.count(f"**{word}**") for word in ("agrees", "disagrees", "no answer")}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    counted = r"f their (\d+) runs (\d+) agree .*?, (\d+) disagree, (\d+) are"
    for text, words in (
        (ANSWERS, counted),
        (readme, r"describe (\d+) runs.*?agrees with (\d+) and disagrees with\s(\d+). It refuses (\d+)"),
    ):
        counts = re.search(words, text, re.DOTALL)
        assert [*map(int, counts.groups())] == [runs, *said.values()]
    assert f"In {said['agrees'] + said['disagrees']} of them the thread says" in readme
    assert f"of {runs - sum(said.values())} the thread gives only a figure" in readme
    assert f"[{len(QUESTIONS['threads'])} public threads]" in readme


@pytest.mark.parametrize("kind, key", [("models", "model"), ("configurations", "deepspeed")])
def test_every_model_and_configuration_is_asked_for(kind, key):
    assert set(QUESTIONS[kind]) == {run[key] for thread in QUESTIONS["threads"] for run in thread["runs"]}


@pytest.mark.ranks
@pytest.mark.parametrize("thread", ["deepspeedai/DeepSpeed#1288", "deepspeedai/DeepSpeed#2252"])
def test_a_question_is_answered_today_as_on_the_page(thread):
    assert printed("answer_questions.py", "--only", thread).strip() in ANSWERS


@pytest.mark.ranks
def test_the_example_says_what_the_page_shows(monkeypatch, capsys):
    blocks = re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    program, *words = shlex.split(blocks[0])
    assert program == "rehearse"
    monkeypatch.chdir(ROOT)
    assert main(words) == 0
    said = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert SECONDS.sub("", said) == SECONDS.sub("", blocks[1].rstrip())


def test_the_readme_shows_lines_of_the_same_answer():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    asked, *said = re.search(r"^\$ (rehearse .*?)^```$", readme, re.M | re.S)[1].splitlines()
    assert asked in LINES and len(said) >= 5
    assert all(line in LINES for line in said if line != "...")


def test_links_within_the_project_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGE + ANSWERS)
    assert links and all((DOCS / link).exists() for link in links)
