"""The pages of the tools: every public name is on one, and every example says what its page shows."""

import re
import subprocess
import sys

import pytest
from helpers import tools
from helpers.paths import ROOT
from helpers.tools import theory
from helpers.tools.machines import namespaces

PAGES = sorted((ROOT / "docs/api").glob("*.md"))
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n+```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^\.\. auto\w+:: distributed_training_measured\.(?:theory\.)?(\S+)$", re.MULTILINE)


def test_every_public_name_is_on_one_page():
    named = [name for page in PAGES for name in NAMED.findall(page.read_text(encoding="utf-8"))]
    formulas = {name for name in theory.HOMES if callable(getattr(theory, name))}
    assert sorted(named) == sorted({"launcher.jobs.launch", *tools.HOMES, *formulas})


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["launch", "measure", "rehearse", "predict", "machines"])
def test_an_example_says_what_its_page_shows(name, tmp_path):
    if name == "machines" and (reason := namespaces.problem()):
        pytest.skip(reason)
    ((code, shown),) = EXAMPLE.findall((ROOT / f"docs/api/{name}.md").read_text(encoding="utf-8"))
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.rstrip() == shown.rstrip(), done.stderr
