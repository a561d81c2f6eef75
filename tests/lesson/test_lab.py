"""How JupyterLab is started: at the start page, with a link that a learner can follow from where they sit."""

import http.server
import json
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress
from unittest import mock

import nbformat
import pytest
from nbclient import NotebookClient
from helpers.course.lesson import index, lab
from helpers.course.syllabus.outline import course


def test_the_printed_link_leads_to_the_page_itself():
    assert "--LabApp.default_url=/lab/tree/index.ipynb" in lab.options("index.ipynb", port=8888, browser=True)


def test_with_a_browser_it_opens_and_nothing_is_said_of_ssh():
    assert lab.has_browser({"DISPLAY": ":0"}, platform="linux") and lab.has_browser({}, platform="darwin")
    assert "--no-browser" not in lab.options("index.ipynb", port=8888, browser=True)


def test_without_a_browser_the_tunnels_command_is_printed():
    assert not lab.has_browser({}, platform="linux") and not lab.has_browser(
        {"DISPLAY": ":10", "SSH_CONNECTION": "a 1 b 22"}, platform="linux"
    )
    assert "--no-browser" in lab.options("index.ipynb", port=8889, browser=False)
    said = lab.tunnel(8889, {"SSH_CONNECTION": "10.0.0.7 50000 10.0.0.9 22", "USER": "ada"})
    assert "ssh -N -L 8889:localhost:8889 ada@10.0.0.9" in said


def test_another_notebook_server_does_not_take_the_port():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert lab.free_port(taken) != taken


def test_root_is_allowed_and_others_get_no_such_option():
    assert "--allow-root" in lab.options("index.ipynb", port=8888, browser=True, root=True)
    assert "--allow-root" not in lab.options("index.ipynb", port=8888, browser=True, root=False)


def test_the_first_start_is_laid_out_and_later_ones_are_the_learners(tmp_path):
    workspace = tmp_path / ".workspaces" / lab.DEFAULT
    lab.lay_out(workspace, "index.ipynb")
    data = json.loads(workspace.read_text())["data"]
    assert data["layout-restorer:data"]["left"]["current"] == lab.CONTENTS
    assert data["notebook:index.ipynb"]["data"]["path"] == "index.ipynb"
    workspace.write_text("the learner's")
    lab.lay_out(workspace, "index.ipynb")
    assert workspace.read_text() == "the learner's"


def test_jupyterlab_calls_its_default_layout_as_we_do():
    from jupyterlab_server.workspaces_handler import WORKSPACE_EXTENSION, slugify

    assert slugify("default", base="") + WORKSPACE_EXTENSION == lab.DEFAULT


def test_the_courses_defaults_are_settings_that_jupyterlab_has():
    schemas = lab.Path(lab.sys.prefix) / "share" / "jupyter" / "lab" / "schemas"
    for place, settings in json.loads((lab.SETTINGS / "overrides.json").read_text()).items():
        package, _, name = place.partition(":")
        known = json.loads((schemas / package / f"{name}.json").read_text())["properties"]
        assert settings.keys() <= known.keys()
    chosen = lab.options("index.ipynb", port=8888, browser=True)
    assert f"--LabApp.app_settings_dir={lab.SETTINGS}" in chosen


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Something that answers, listed as this user's JupyterLab."""
    answering = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=answering.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{answering.server_port}/"
    listed = [{"root_dir": str(tmp_path / "work"), "url": url, "token": "abc"}]
    monkeypatch.setattr(lab, "list_running_servers", lambda runtime_dir: listed)
    yield answering
    answering.shutdown()
    answering.server_close()
    thread.join()


def test_a_second_start_prints_the_link_of_the_first(tmp_path, server, monkeypatch, capsys):
    monkeypatch.setattr(lab.os, "execve", lambda *words: pytest.fail("a second server was started"))
    lab.open_lab(tmp_path / "work", "index.ipynb")
    link = f"http://127.0.0.1:{server.server_port}/lab/tree/index.ipynb?token=abc"
    assert capsys.readouterr().out.splitlines()[-1] == link


def test_a_server_of_another_folder_or_that_is_gone_does_not_count(tmp_path, server):
    assert lab.running(tmp_path / "elsewhere", "index.ipynb", tmp_path / "elsewhere" / lab.OWN) is None
    server.server_close()
    assert lab.running(tmp_path / "work", "index.ipynb", tmp_path / "work" / lab.OWN) is None


def test_what_lab_and_its_kernels_keep_stays_out_of_the_home_folder(tmp_path):
    """`jupyter --paths` and IPython say where they would write, and a terminal finds the course's command."""
    home, own = tmp_path / "home", tmp_path / "work" / lab.OWN
    home.mkdir()
    variables = lab.environment(own, {"HOME": str(home), "PATH": "/usr/bin", "MAKELEVEL": "1"})
    look = (
        "import IPython.paths, jupyter_core.paths as paths, matplotlib, shutil;"
        "print(paths.jupyter_config_dir(), paths.jupyter_data_dir(), paths.jupyter_runtime_dir(),"
        " IPython.paths.get_ipython_dir(), matplotlib.get_configdir(), matplotlib.get_cachedir());"
        "print(shutil.which('rehearse'))"
    )
    done = subprocess.run(
        [lab.sys.executable, "-c", look], env=variables, capture_output=True, text=True, timeout=60
    )
    places, command = done.stdout.splitlines()
    assert all(place.startswith(str(own)) for place in places.split()), places
    assert command == str(lab.Path(lab.sys.executable).parent / "rehearse")
    assert "MAKELEVEL" not in variables and not list(home.iterdir())


@pytest.mark.ranks
def test_a_cell_in_the_middle_after_a_restart_says_what_to_run(tmp_path):
    own = tmp_path / lab.OWN
    lab.replace(own / lab.STARTUP, lab.HINT)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("exercises.deal.check(1)")])
    client = NotebookClient(notebook, allow_errors=True, kernel_name="python3")
    with mock.patch.dict("os.environ", IPYTHONDIR=str(own / "ipython")):
        client.execute()
    said = [output.get("text") for output in notebook.cells[0].outputs]
    words = "This kernel does not know `exercises` yet. Run the cells above first"
    assert words in said[-1] and notebook.cells[0].outputs[0]["ename"] == "NameError"


@pytest.fixture
def start_page(tmp_path):
    """The address of a JupyterLab of its own, at a start page on which its one cell was run."""
    shown = index.Progress(course(), {})._repr_markdown_()
    output = nbformat.v4.new_output("display_data", {"text/markdown": shown})
    cells = [nbformat.v4.new_code_cell("index.progress()", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "index.ipynb")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / course()[0].file)
    port = lab.free_port(8900)
    chosen = lab.options("index.ipynb", port, browser=False, root=True)
    command = [lab.sys.executable, "-m", "jupyterlab", *chosen, "--IdentityProvider.token="]
    variables = lab.environment(tmp_path / lab.OWN)
    address = f"http://127.0.0.1:{port}/lab/tree/index.ipynb"
    server = subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with suppress(OSError):
                urllib.request.urlopen(address, timeout=20).close()
                break
            time.sleep(0.2)
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.mark.ranks
def test_a_link_that_the_start_pages_cell_shows_opens_the_lesson(start_page, browser):
    browser.visit(start_page)
    opened = browser.run(
        """const found = async (look) => {
             for (let tries = 0; tries < 300; tries++) {
               if (look()) return look();
               await new Promise((later) => setTimeout(later, 100));
             }
           };
           const link = await found(() => document.querySelector(".jp-OutputArea-output td a[href*=':']"));
           link.click();
           return await found(() => [...document.querySelectorAll(".lm-TabBar-tabLabel")]
             .map((tab) => tab.textContent).find((name) => name.startsWith("00_")));"""
    )
    assert opened == course()[0].file
