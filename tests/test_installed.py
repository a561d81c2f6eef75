"""The tools without the course: a wheel in a virtual environment outside of the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from zipfile import ZipFile

import pytest
from helpers.paths import ROOT

BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
NAME = "distributed_training_measured"
MODEL = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128}
MODEL |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    (source / "helpers").mkdir(parents=True)
    left_out = shutil.ignore_patterns("__pycache__")
    for part in ("tools", "course"):
        shutil.copytree(ROOT / "helpers" / part, source / "helpers" / part, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE", "helpers/__init__.py"):
        shutil.copy(ROOT / name, source / name)
    (source / NAME).symlink_to(os.readlink(ROOT / NAME))
    command = [sys.executable, "-c", BUILD, str(folder)]
    said = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs a program of an environment that has the wheel, and of this one what the wheel depends on."""
    place = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "venv/bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    # On PYTHONPATH, where the file is not read that puts the checkout on the path of this environment.
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(program, *words):
        command = [place / "venv/bin" / program, *map(str, words)]
        return subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=300
        )

    return run


def test_a_wheel_holds_the_tools_alone(wheel):
    names = ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {NAME}
    files = {str(path.relative_to(ROOT / "helpers/tools")) for path in (ROOT / "helpers/tools").rglob("*.py")}
    assert {f"{NAME}/{file}" for file in files} <= set(names)


def test_the_command_of_an_installation(installed, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "zero.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    words = ["--model", tmp_path, "--deepspeed", tmp_path / "zero.json", "--ranks", 4, "--sequence", 64]
    said = installed("rehearse", *words, "--gpu-memory", "80GB")
    assert said.returncode == 0 and "fits, with" in said.stdout, said.stdout + said.stderr
    assert "ZeRO stage 3, 4 ranks" in said.stdout and "Traceback" not in said.stderr


def test_real_ranks_of_an_installation(installed, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        f"from {NAME} import Traffic\n"
        f"from {NAME}.launcher.jobs import launch\n"
        "def all_reduced():\n"
        "    import deepspeed, torch\n"
        "    deepspeed.init_distributed('gloo')\n"
        "    with Traffic() as traffic:\n"
        "        deepspeed.comm.all_reduce(torch.ones(25))\n"
        "    return traffic.logged\n"
        "if __name__ == '__main__':\n"
        "    print([*launch(all_reduced, ranks=2)])\n"
    )
    said = installed("python", program)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "[{'all_reduce': 100}, {'all_reduce': 100}]" in said.stdout


def test_the_course_is_not_installed(installed):
    said = installed("python", "-c", "import helpers")
    assert said.returncode == 1 and "No module named 'helpers'" in said.stderr
