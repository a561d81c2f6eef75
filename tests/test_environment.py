"""pyproject.toml, constraints.txt, environment.yml and the Makefile agree, and set-up refuses what cannot
work."""

import errno
import http.server
import os
import re
import subprocess
import sys
import threading
import tomllib
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from helpers.course.syllabus import addresses
from tests import nbval_options

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
PIP = next(entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict))
INSTALL = (ROOT / "install.py").read_text()


EXTRAS = PROJECT["optional-dependencies"]
LINES = {*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)}
OTHERS = {line for line in LINES if Requirement(line).name != PROJECT["name"]}  # the rest names extras


def test_the_tests_environment_takes_every_extra():
    taken, new = set(), {"test"}
    while new:
        taken |= new
        needs = [Requirement(line) for extra in new for line in EXTRAS[extra]]
        new = {extra for need in needs if need.name == PROJECT["name"] for extra in need.extras} - taken
    assert taken == set(EXTRAS)


@pytest.mark.parametrize("line", sorted(OTHERS))
def test_every_range_admits_its_pin(line):
    requirement = Requirement(line)
    assert requirement.name.lower() in nbval_options.pinned(), f"{requirement.name} is not in constraints.txt"
    assert requirement.specifier.contains(nbval_options.pinned()[requirement.name])


def test_conda_has_the_same_pins():
    assert "-c constraints.txt" in PIP
    for name in ("torch", "deepspeed"):
        assert f"{name}=={nbval_options.pinned()[name]}" in PIP
    assert f"python={nbval_options.PYTHON[0]}.{nbval_options.PYTHON[1]}" in CONDA["dependencies"]
    assert CONDA["channels"] == ["conda-forge", "nodefaults"]


def test_links_and_buttons_follow_one_setting():
    """Filled in, it links what is published; empty, nothing is linked that nobody has registered."""
    known = {"Repository": "https://github.com/me/mine", "Documentation": "https://me.github.io/mine/"}
    stored = [(ROOT / name).read_text() for name in addresses.FILES]
    assert [addresses.written(text, addresses.urls()) for text in stored] == stored
    linked = {*re.findall(r"https://[^)\s`]+", "".join(addresses.written(text, known) for text in stored))}
    binder = "https://mybinder.org/v2/gh/me/mine/HEAD?urlpath=lab/tree/notebooks/index.ipynb"
    assert linked > {*known.values(), "https://codespaces.new/me/mine", binder}
    without = "".join(addresses.written(addresses.written(text, known), {}) for text in stored)
    assert not re.findall(r"codespaces\.new|mybinder|github\.io|me/mine", without)


def test_one_address_without_the_other_is_refused_by_its_name():
    with pytest.raises(ValueError, match="lacks Documentation: fill in both, or neither"):
        addresses.both_or_none({"Repository": "https://github.com/me/mine"})


def test_no_text_links_an_address_of_its_own():
    own = re.compile(r"[/.]distributed-training-measured[./]|codespaces\.new/|mybinder\.org/")
    allowed = {ROOT / "helpers/course/syllabus/addresses.py", Path(__file__)}
    folders = (".devcontainer", ".github", "docs", "helpers", "notebooks", "tests")
    files = [*ROOT.glob("*.*"), *(file for folder in folders for file in (ROOT / folder).rglob("*.*"))]
    kinds = {".md", ".ipynb", ".py", ".cff", ".json", ".yml"}
    texts = [file for file in files if file.suffix in kinds and file not in allowed]
    assert texts and not [text for text in texts if own.search(text.read_text(encoding="utf-8"))]


def test_one_torch_and_one_index_everywhere():
    index = re.search(r'TORCH_INDEX = "(.*?)"', INSTALL).group(1)
    assert f"--extra-index-url {index}" in PIP
    assert index in (ROOT / "README.md").read_text()
    assert f'TORCH = "torch=={nbval_options.pinned()["torch"]}"' in INSTALL


def test_the_installed_versions_are_the_pinned_ones():
    import importlib.metadata

    for name, version in nbval_options.pinned().items():
        assert importlib.metadata.version(name).split("+")[0] == version, f"{name}: run `make clean setup`"


@pytest.mark.parametrize(
    "version, fine",
    [((3, 11, 4), False), ((3, 11, 5), True), ((3, 13, 9), True), ((3, 14, 0), False), ((3, 9, 1), False)],
)
def test_another_python_is_refused_in_one_line(version, fine, monkeypatch):
    import install

    monkeypatch.setattr(sys, "version_info", version)
    if fine:
        install.check_python()
    else:
        with pytest.raises(SystemExit) as refused:
            install.check_python()
        assert "needs 3.11.5 to 3.13" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "number, words",
    [(errno.EROFS, "Read-only file system.*your own"), (errno.ENOSPC, "No space left on device.*make room")],
)
def test_a_checkout_that_cannot_be_written_is_named_as_what_it_is(monkeypatch, number, words):
    import install

    def refuse(dir):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(install.tempfile, "TemporaryFile", refuse)
    with pytest.raises(SystemExit, match=f"nothing can be written to .*{words}"):
        install.check_folder()


def test_a_disk_without_room_is_named_before_anything_is_installed(monkeypatch, tmp_path):
    import install

    monkeypatch.setattr(install, "VENV", str(tmp_path / "none"))
    install.check_folder()
    monkeypatch.setattr(install.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2e8))
    with pytest.raises(SystemExit, match="at least 1.5 GB, and 0.2 GB is free"):
        install.check_folder()


@pytest.fixture
def installer(monkeypatch):
    """install.py on a machine without a GPU; what it gives to pip is in `.calls`."""
    import install

    monkeypatch.setattr(install, "calls", [], raising=False)
    monkeypatch.setattr(install, "pip", lambda *arguments: install.calls.append(arguments) or True)
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    monkeypatch.setattr(install.sys, "platform", "linux")
    return install


@contextmanager
def index_that_answers(status):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


def test_an_index_that_does_not_answer_is_passed_over(installer, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:9/nothing")
    assert installer.install_torch("constraints.txt")
    assert "cannot be reached" in capsys.readouterr().out
    assert installer.calls == [("PyTorch", "-c", "constraints.txt", f"{installer.TORCH}+cpu")]


@pytest.mark.parametrize(
    "status, words", [(200, ""), (401, "401 Unauthorized"), (403, "403 Forbidden"), (404, "404 Not Found")]
)
def test_an_index_that_refuses_is_named_with_its_answer_and_left_to_pip(
    installer, monkeypatch, capsys, status, words
):
    with index_that_answers(status) as index:
        monkeypatch.setenv("TORCH_INDEX", index)
        assert installer.install_torch("constraints.txt")
    said = capsys.readouterr().out
    assert "cannot be reached" not in said and words in said and bool(said) == bool(words)
    assert installer.calls == [
        ("PyTorch", "-c", "constraints.txt", "--extra-index-url", index, f"{installer.TORCH}+cpu")
    ]


def test_what_pip_could_not_install_is_told_in_its_words(monkeypatch, capfd):
    import install

    monkeypatch.setattr(install, "VENV", sys.prefix)
    assert install.pip("nothing", "--no-index", "a-package-that-is-not-there") is False
    said = capfd.readouterr()
    assert not said.out and "No matching distribution found for a-package-that-is-not-there" in said.err


def test_a_moved_checkout_is_set_up_again(monkeypatch):
    import install

    before = install.fingerprint()
    assert install.fingerprint() == before
    monkeypatch.setattr(install, "HERE", str(ROOT) + "/.")  # the same files under another name
    assert install.fingerprint() != before


def test_make_help_names_every_verb():
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    for verb in ("lab", "test", "check", "refresh", "lint", "bench", "reset", "clean"):
        assert f"make {verb} " in shown


def test_ci_calls_the_readmes_test_command():
    assert (ROOT / ".ci" / "run").read_text().endswith("\nmake test\nmake test-rest\n")
    assert "make test" in (ROOT / "README.md").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_each_push_is_tested_and_each_night_the_longer_lane():
    workflow = yaml.load((ROOT / ".github/workflows/test.yml").read_text(), yaml.BaseLoader)
    assert {"push", "pull_request", "schedule"} <= set(workflow["on"])
    jobs = workflow["jobs"]
    assert jobs["test"]["steps"][-1] == {"run": "make test"} and "if" not in jobs["test"]
    assert jobs["rest"]["steps"][-1] == {"run": "make test-rest"} and "'schedule'" in jobs["rest"]["if"]


@pytest.mark.parametrize(
    ("file", "said"),
    [("tests/measure/test_clock.py", "no time was left in this run"), ("tests/test_rooms.py", " passed in ")],
)
def test_what_a_run_has_no_time_for_is_skipped_and_said_but_in_the_longer_lane_alone(file, said):
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", file]
    late = os.environ | {"TESTS_END": "0"}
    done = subprocess.run(command, cwd=ROOT, env=late, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and said in done.stdout
