"""The tools without the course, and the checkout, each installed into an environment of its own.

Isolated: the environment has no pip and no packages of another; the wheel is the real one; of libraries it
sees those alone that the wheel's metadata and theirs ask for, without extras, and nothing of the checkout.
Not isolated: these libraries are links to the files of the environment that is tested, since to install torch
would take minutes, and Python is the same.  They lie in a folder of their own, outside of site-packages.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from zipfile import Path as PathInZip
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from helpers.paths import ROOT

NAME = "distributed_training_measured"
README = (ROOT / "helpers/tools/README.md").read_text(encoding="utf-8")
MODEL = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128}
MODEL |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
ASKED = ["--model", ".", "--deepspeed", "zero.json", "--ranks", "4", "--sequence", "64"]
pytestmark = pytest.mark.ranks


def blocks(kind):
    """The README's blocks of a kind; of none: what a program says."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for its, text in found if its == kind]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What a clone holds of the package, and the course's half of `helpers`."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "helpers", source / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "LICENSE", f"{NAME}.py"):
        shutil.copy(ROOT / name, source)
    return source


def built(kind, source, folder):
    """A wheel as pip builds it: kind is "wheel", or "editable" for `pip install -e`."""
    build = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    command = [sys.executable, "-c", build, str(folder)]
    said = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return built("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def libraries(wheel, tmp_path_factory):
    """A folder with links to what pip would install along with the wheel."""
    folder = tmp_path_factory.mktemp("libraries")
    information = next(path for path in PathInZip(wheel).iterdir() if path.name.endswith(".dist-info"))
    left, found = [(metadata.PathDistribution(information), {""})], set()
    while left:
        distribution, extras = left.pop()
        for need in map(Requirement, distribution.requires or ()):
            name = canonicalize_name(need.name)
            wanted = not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in extras)
            if wanted and name not in found:
                found.add(name)
                left.append((metadata.distribution(name), {"", *need.extras}))
                link(left[-1][0], folder)
    assert {"torch", "deepspeed", "transformers"} < found and not {"matplotlib", "peft"} & found
    return folder


def link(distribution, folder):
    for name in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
        if not (folder / name).exists():
            (folder / name).symlink_to(distribution.locate_file(name))


def environment(wheel, libraries, place):
    """Runs a program of a new environment that has a wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "venv/bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    (packages,) = (place / "venv").glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(f"{libraries}\n")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(program, *words, cwd=place):
        command = [place / "venv/bin" / program, *map(str, words)]
        return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture(scope="module")
def installed(wheel, libraries, tmp_path_factory):
    return environment(wheel, libraries, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def editable(source, libraries, tmp_path_factory):
    wheel = built("editable", source, tmp_path_factory.mktemp("editable"))
    return environment(wheel, libraries, tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def training(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "zero.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    return tmp_path


def test_a_wheel_holds_the_tools_alone(wheel):
    names = ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {NAME}
    files = {str(path.relative_to(ROOT / "helpers/tools")) for path in (ROOT / "helpers/tools").rglob("*.py")}
    held = {name.removeprefix(f"{NAME}/") for name in names if name.startswith(f"{NAME}/")}
    assert held == files | {"py.typed", "README.md"}


def test_the_course_is_not_installed(installed):
    said = installed("python", "-c", "import helpers")
    assert said.returncode == 1 and "No module named 'helpers'" in said.stderr


def test_the_command_says_what_the_readme_shows(installed, tmp_path):
    model, config = blocks("json")
    (tmp_path / "config.json").write_text(model)
    (tmp_path / "ds_config.json").write_text(config)
    (command,) = [shlex.split(block) for block in blocks("sh") if block.startswith("rehearse")]
    said = installed(*command, cwd=tmp_path)
    shown = blocks("")[0].splitlines()
    lines = iter(line.rstrip() for line in said.stdout.splitlines())
    assert all(line in lines for line in shown if line != "..."), said.stdout + said.stderr  # in this order
    assert said.returncode == 1 and "Traceback" not in said.stderr


def test_programs_say_what_the_readme_shows(installed, tmp_path):
    programs, shown = blocks("python"), blocks("")[1:]
    assert len(programs) == len(shown) == 2
    for program, text in zip(programs, shown):
        (tmp_path / "program.py").write_text(program, encoding="utf-8")
        said = installed("python", "program.py", cwd=tmp_path)
        assert said.stdout == text, said.stdout + said.stderr


def test_a_rank_that_fails_or_hangs_shows_the_learners_line_and_none_of_the_tools(installed, tmp_path):
    program = [
        f"from {NAME} import LaunchError, RankError, launch",
        "def reduce(text):",
        "    import deepspeed, torch",
        "    deepspeed.init_distributed('gloo')",
        "    if text or deepspeed.comm.get_rank():",
        "        deepspeed.comm.all_reduce(text or torch.ones(1))",
        "for text in ('no tensor', ''):",
        "    try:",
        "        launch(reduce, ranks=2, arguments={'text': text}, device='cpu', timeout=10)",
        "    except RankError as error:",
        "        print(error)",
    ]
    (tmp_path / "program.py").write_text("\n".join(program))
    said = installed("python", "program.py", cwd=tmp_path)
    failed, hung = re.split(r"^(?=rank 1 of 2 hung)", said.stdout, flags=re.MULTILINE)
    for error in (failed, hung):
        assert "program.py, line 6, in reduce\n" in error and "torch/" in error, said.stdout + said.stderr
        assert error.count(", line ") == 2 and NAME not in error  # and one of a library
    assert "raised" in failed and "    deepspeed.comm.all_reduce(text or torch.ones(1))" in failed


def test_neither_a_program_nor_its_ranks_import_the_course(installed, tmp_path):
    program = [
        f"from {NAME} import Ledger, Traffic, launch, rehearse, theory",
        "def ours():",
        "    import sys",
        "    files = [getattr(module, '__file__', None) or '' for module in list(sys.modules.values())]",
        f"    return [name for name in sys.modules if name.startswith('{NAME}.')] != [], [",
        f"        file for file in files if file.startswith('{ROOT}/helpers') or '/helpers/' in file]",
        "print(launch(ours, ranks=2, device='cpu'), rehearse(ours, ranks=2), ours())",
    ]
    (tmp_path / "program.py").write_text("\n".join(program))
    said = installed("python", "program.py", cwd=tmp_path)
    assert said.stdout == "[(True, []), (True, [])] (True, []) (True, [])\n", said.stdout + said.stderr


@pytest.mark.parametrize(
    "words, missing, extra",
    [
        (["--figure", "memory.png"], "--figure needs matplotlib", "plot"),
        (["--lora", "4"], "LoRA needs peft", "lora"),
    ],
)
def test_what_an_extra_brings_is_named_where_it_is_missing(installed, training, words, missing, extra):
    said = installed("rehearse", *ASKED, *words, cwd=training)
    cure = f"pip install 'distributed-training-measured[{extra}]'"
    assert said.returncode == 2 and not said.stdout
    assert said.stderr == f"cannot be rehearsed: {missing}, which is not installed: {cure}\n"


def test_an_editable_installation_is_the_checkout_with_one_tree_of_modules(editable, source, training):
    said = editable("rehearse", *ASKED, "--gpu-memory", "80GB", cwd=training)
    assert said.returncode == 0 and "fits, with" in said.stdout, said.stdout + said.stderr
    program = [
        "import sys, helpers",
        f"from {NAME} import launch, theory",
        f"from {NAME}.rehearsal.__main__ import main",
        f"from {NAME}.theory.gpt_size import GPTSize",
        "from helpers import launch as same",
        "assert launch is same and theory is helpers.theory and GPTSize is helpers.theory.GPTSize",
        "modules = {id(module): getattr(module, '__file__', None) for module in sys.modules.values()}",
        f"ours = [file for file in modules.values() if file and file.startswith('{source}/helpers/tools')]",
        "print(len(ours) > 10, len(ours) - len({*ours}))",
    ]
    said = editable("python", "-c", "\n".join(program), cwd=training)
    assert said.stdout == "True 0\n", said.stdout + said.stderr
