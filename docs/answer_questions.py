"""The sections of docs/questions.md: the trainings of docs/questions.json, rehearsed; and its summary.

python docs/answer_questions.py                              # eight minutes on two cores
python docs/answer_questions.py --only deepspeedai/DeepSpeed#1288
python docs/answer_questions.py --only LlamaFactory --whole  # with all that the command says
python docs/answer_questions.py --summary                    # the page's table, from its sections; at once
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

QUESTIONS = json.loads(Path(__file__).with_name("questions.json").read_text())
STATUS = {0: "fits", 1: "does not fit"}
VERDICT = re.compile(r"^(fits(?: only with \w+(?: segments)?)?|does not fit: .* are refused)", re.MULTILINE)
NEEDS = re.compile(r"needs most, ([\d.,]+) GB: allocated ([\d.,]+), reserved ([\d.,]+(?: to [\d.,]+)?),")
ADVICE = re.compile(r": try (.*), which (.*) \(rehearsed\)$", re.MULTILINE)
MACHINE = re.compile(
    r"^(a machine needs [\d.,]+ GB|the machine's own memory [^(]*?)(?: of its own| \()", re.MULTILINE
)


def rehearsed(run: dict) -> tuple[int, str, str]:
    """The command's exit status, and what it said on stdout and stderr."""
    with tempfile.TemporaryDirectory() as folder:
        for name, kind, file in (
            ("model", "models", "config.json"),
            ("deepspeed", "configurations", "ds.json"),
        ):
            Path(folder, file).write_text(json.dumps(QUESTIONS[kind][run[name]]))
        command = [sys.executable, "-m", "helpers.tools.rehearsal", "--model", "config.json"]
        command += ["--deepspeed", "ds.json", *shlex.split(run["options"])]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def short(run: dict, status: int, said: str, complaint: str) -> str:
    """The answer in a few words: the verdict where a GPU is named, what is needed, the rows that the run
    names, what a machine needs, and the advice."""
    if status == 2:
        return complaint.strip().splitlines()[-1]
    needs, allocated, reserved = NEEDS.search(said).groups()
    verdict, advice = VERDICT.search(said), ADVICE.search(said)
    capacity = re.search(r" of ([\d.,]+) GB$", said, re.MULTILINE)
    words = f"**{verdict[1]}**; needs {needs} of {capacity[1]} GB" if verdict else f"needs {needs} GB"
    words += f" (allocated {allocated}, reserved {reserved})"
    for row in run.get("also", ()):
        found = re.search(rf"^ *{re.escape(row)} +([\d.,]+)$", said, re.MULTILINE)
        words += f"; {row} {found[1]} GB" if found else f"; no {row}"
    if machine := MACHINE.search(said):
        words += f"; {machine[1]}"
    return f"{words}; try {advice[1]}, which {advice[2]}" if advice else words


def answer(thread: dict, whole: bool) -> str:
    """A section of the page: the question, a link, what came of it, and what the command says of each run,
    with "agrees" or "disagrees" where it is known whether the training fitted."""
    answers = []
    for run in thread["runs"]:
        status, said, complaint = rehearsed(run)
        if whole:
            print(f"{thread['thread']}, {run['asked']}: {run['options']}\n{said}{complaint}", file=sys.stderr)
        words = f"{run['asked']}: {short(run, status, said, complaint)}"
        if status == 2:
            words += " — **no answer**"
        elif run["known"]:
            words += " — **agrees**" if STATUS[status] == run["known"] else " — **disagrees**"
        answers.append(words)
    repository, number = thread["thread"].split("#")
    link = f"[{repository.split('/')[1]} #{number}](https://github.com/{repository}/issues/{number})"
    said = "\n".join(f"- {words}" for words in answers)
    outcome = f"{link}. Known outcome: {thread['outcome']}."
    return f"## {thread['question']}\n\n{outcome}\n\n{said}\n\n{thread['remark']}\n"


def summary(page: str) -> str:
    """The table of the page: each run's question, whether it ran, and what its section says."""
    rows = ["| question | asked | did it run? | `rehearse` says | |", "|---|---|---|---|---|"]
    for thread in QUESTIONS["threads"]:
        question = f"[{thread['question']}](<#{thread['question'].replace(' ', '-')}>)"
        _, _, section = page.partition(f"\n## {thread['question']}\n")
        for run in thread["runs"]:
            asked = f"- {run['asked']}: "
            line = next(line for line in section.splitlines() if line.startswith(asked)).removeprefix(asked)
            words, _, judged = line.partition(" — ")
            ran = {"fits": "yes", "does not fit": "no", None: "–"}[run["known"]]
            rows.append(f"| {question} | {run['asked']} | {ran} | {in_brief(words)} | {judged} |")
            question = ""
    return "\n".join(rows)


def in_brief(words: str) -> str:
    """The verdict of an answer, or what is needed where no GPU was named."""
    words = words.replace("**", "")
    if "own memory does not suffice" in words:
        return "does not fit the host's memory"
    return re.split(r": |; | \(", words)[0].replace("cannot be rehearsed", "refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="threads whose name has these words")
    parser.add_argument("--whole", action="store_true", help="all that the command says, on stderr")
    parser.add_argument("--summary", action="store_true", help="the page's table, from its sections")
    options = parser.parse_args()
    if options.summary:
        print(summary(Path(__file__).with_name("questions.md").read_text()))
        return
    for thread in QUESTIONS["threads"]:
        if options.only in thread["thread"]:
            print(answer(thread, options.whole), flush=True)


if __name__ == "__main__":
    main()
