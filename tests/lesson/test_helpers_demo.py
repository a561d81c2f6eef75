"""The demo notebook of the helpers: each cell shows what its tag says, a picture that is right or one that is
wrong."""

import re
import tempfile

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from helpers.course.plots.style import picture
from helpers.paths import ROOT

pytestmark = pytest.mark.ranks
DEMO = ROOT / "tests/lesson/helpers_demo.ipynb"
AGREES = re.compile(r"(They|Both|All \d+) agree\.$")
DIFFERS = re.compile(r"\d+ of \d+ differs?\.$")
SAID = {  # of pictures that have no verdict: what stands in a right one's sentence, and in a wrong one's
    "caught(": ("no fault: no test.", 'no division: "norm", "weights, SGD"; '),
    "step_timeline(": (
        "overlapped: 141 ms, messages exposed 0, hidden 68.4.",
        "stage 1: 160 ms, messages exposed 27.9, hidden 0; ",
    ),
    "tapes(": ("after: rank 0 12 × 2.5 from 0; ", "after: rank 0 12 × 2.5 from 12; "),
    "traffic_card(": ("optimizer states 0, other 2 elements", "optimizer states 1, other 0"),
}


@pytest.fixture(scope="module")
def shown():
    """[(source, tags, sentence, page)] of the cells that show a figure."""
    notebook = nbformat.read(DEMO, as_version=4)
    with tempfile.TemporaryDirectory(prefix="kernels-") as sockets:
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/kernel")
        place = {"metadata": {"path": str(ROOT)}}
        NotebookClient(notebook, km=manager, timeout=300, resources=place).execute()
    return [
        (cell.source, cell.metadata.get("tags", []), output.data["text/plain"], output.data["text/html"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "<figure" in output.get("data", {}).get("text/html", "")
    ]


def test_every_helper_is_shown_right_and_wrong(shown):
    helpers = ("compare(", "same_training(", "bytes_card(", *SAID)
    for helper in helpers:
        tags = {
            tag
            for source, tags, *_ in shown
            for tag in tags
            if re.search(rf"^(\w+ = )?{re.escape(helper)}", source, re.M)
        }
        assert tags == {"right", "wrong"}, helper


def test_each_picture_says_what_its_cell_is_for(shown):
    for source, tags, sentence, page in shown:
        assert picture(page)
        if not tags:
            continue
        wrong = tags == ["wrong"]
        helper = next((name for name in SAID if name in source), None)
        if helper:
            assert SAID[helper][wrong] in sentence and SAID[helper][not wrong] not in sentence, sentence
        else:
            assert (DIFFERS if wrong else AGREES).search(sentence), sentence
