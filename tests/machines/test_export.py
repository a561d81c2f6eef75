"""What `export` writes: everything that a function uses, and nothing that cannot be written.  That it runs:
tests/launcher/test_export.py."""

import ast
import linecache
import os as operating_system
import subprocess
import sys
import threading
from dataclasses import dataclass

import cloudpickle
import pytest
import torch
from helpers import Traffic, corpus, export, models
from helpers.tools.launcher.script import Script, files_to_copy, names_used, our_modules, source_of

RATE, SIZE = {"lr": 1e-3, "betas": (0.9, 0.95)}, models.GPTSize(width=32)


@dataclass
class Point:
    x: int = 1

    def doubled(self):
        return Point(twice(self.x))


def twice(x, by=RATE["lr"]):
    return 2 * x


def job(steps=2):
    from helpers.tools.theory import wire_bytes

    inner = [operating_system.getpid() for _ in range(steps)]
    return inner, Point(3).doubled(), SIZE, RATE, torch.ones(1), Traffic, corpus, wire_bytes


@pytest.fixture(autouse=True)
def as_if_in_a_notebook(monkeypatch):
    for thing in (job, twice, Point):
        monkeypatch.setattr(thing, "__module__", "__main__")


def test_the_script_holds_all_that_a_function_uses_and_runs_in_another_process(tmp_path):
    script = export(job, tmp_path / "out", {"steps": 3})
    text = script.read_text()
    for line in (
        "import os as operating_system",
        "import torch",
        "from helpers.tools.measure.traffic import Traffic",
        "from helpers.course import corpus",
    ):
        assert line in text.splitlines()
    assert text.index("RATE = ") < text.index("def twice") < text.index("class Point") < text.index("def job")
    assert (
        "SIZE = GPTSize(vocabulary=256, context=64, width=32, layers=4, heads=4)" in text
        and "job(steps=3)" in text
    )
    show = (
        "import runpy, sys; found = runpy.run_path('job.py'); print(found['job'](2)[1], "
        "found['SIZE'], sys.modules['helpers'].__file__)"
    )
    said = subprocess.run(
        [sys.executable, "-c", show],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        timeout=120,
        env=without_the_course(),
    )
    assert (
        said.stdout.split("\n")[-2] == f"Point(x=6) {SIZE} {tmp_path / 'out' / 'helpers' / '__init__.py'}"
    ), said.stderr


def without_the_course():
    return {name: value for name, value in operating_system.environ.items() if name != "PYTHONPATH"} | {
        "DS_ACCELERATOR": "cpu"
    }


def test_what_is_copied_of_the_course_imports_nothing_that_is_not(tmp_path):
    export(job, tmp_path / "out")
    copied = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out" / "helpers").rglob("*.py")
    }
    assert {
        "helpers/__init__.py",
        "helpers/course/corpus.py",
        "helpers/tools/theory/communication.py",
        "helpers/tools/measure/internals.py",
    } <= copied
    assert not any(
        path.startswith(("helpers/tools/launcher", "helpers/course/plots", "helpers/course/exercises"))
        for path in copied
    )
    for path in copied:
        package = path.rpartition("/")[0].replace("/", ".")
        assert set(files_to_copy((tmp_path / "out" / path).read_text(), package)) <= copied


def test_what_is_imported_for_types_alone_is_not_copied():
    guarded = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from helpers import plots\nelse:\n "
        "   from helpers import corpus\n"
    )
    assert our_modules(guarded + "if plots:\n    import helpers.paths\n") == {
        "helpers.course.corpus",
        "helpers.paths",
    }


def test_the_files_for_deepspeed_and_slurm(tmp_path):
    export(
        twice,
        tmp_path,
        {"x": 4},
        hosts=["a1", "a2", "a3"],
        slots=4,
        cpus=6,
        interface="ib0",
        account="physics",
        time="01:00:00",
    )
    assert (tmp_path / "hostfile").read_text() == "a1 slots=4\na2 slots=4\na3 slots=4\n"
    lines = (tmp_path / ".deepspeed_env").read_text().splitlines()
    assert lines == ["OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=ib0", "NCCL_SOCKET_IFNAME=ib0"]
    batch = (tmp_path / "job.sbatch").read_text()
    wanted = {
        "nodes": 3,
        "ntasks-per-node": 4,
        "account": "physics",
        "gpus-per-node": 4,
        "cpus-per-task": 6,
        "time": "01:00:00",
    }
    for key, value in wanted.items():
        assert f"#SBATCH --{key}={value}\n" in batch
    assert "partition" not in batch and " NCCL_SOCKET_IFNAME=ib0\n" in batch
    assert (
        "#SBATCH --requeue\n" in batch
        and "#SBATCH --open-mode=append\n" in batch
        and " -lt 3 ]; then\n    scontrol requeue " in batch
    )
    assert (
        "\nsrun --ntasks=$WORLD_SIZE --kill-on-bad-exit=1 --cpus-per-task=6 \\\n    bash -c" in batch
        and "29500" not in batch
    )
    (line,) = [line for line in batch.splitlines() if "MASTER_PORT=" in line]
    ports = [port_of_job(line, job) for job in (7, 8, 123_456)]
    assert len(set(ports)) == 3 and all(
        1024 < port < 32_768 for port in ports
    )  # below those that Linux gives to connections
    for file in ("run.sh", "job.sbatch"):
        subprocess.run(["bash", "-n", str(tmp_path / file)], check=True, timeout=10)
    assert operating_system.access(tmp_path / "run.sh", operating_system.X_OK)
    assert (
        "deepspeed --hostfile hostfile --master_addr a1 --master_port 29500 twice.py\n"
        in (tmp_path / "run.sh").read_text()
    )
    export(twice, tmp_path, {"x": 5})  # what an earlier export wrote is replaced
    assert "twice(x=5)" in (tmp_path / "twice.py").read_text()


def port_of_job(line, number):
    """What the line of the job file makes of a job's number, in bash."""
    command = ["bash", "-c", f"scontrol() {{ echo a1; }}; {line}; echo $MASTER_PORT"]
    said = subprocess.run(
        command,
        env={**operating_system.environ, "SLURM_JOB_ID": str(number)},
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return int(said.stdout)


def test_a_rank_without_a_core_is_refused(tmp_path):
    with pytest.raises(ValueError, match="^cpus, the processor cores per rank, must be from 1 to 1024"):
        export(twice, tmp_path, {"x": 4}, cpus=0)


def test_restarts_are_counted_from_0(tmp_path):
    export(twice, tmp_path / "never", {"x": 4}, restarts=0)
    assert " -lt 0 ]" in (tmp_path / "never" / "job.sbatch").read_text()
    with pytest.raises(ValueError, match="^restarts must be from 0 to 1000, not -1$"):
        export(twice, tmp_path / "less", {"x": 4}, restarts=-1)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "hostfile").write_text("mine\n")
    with pytest.raises(FileExistsError, match="holds other files: export into a folder of its own"):
        export(twice, tmp_path)
    assert (tmp_path / "hostfile").read_text() == "mine\n"


def test_what_cannot_be_written_down_is_named(tmp_path):
    guard, tensor = threading.Lock(), torch.ones(2)

    def locked():
        return guard

    def tensors():
        return tensor

    def missing():
        return not_defined_anywhere  # noqa: F821

    def argued(value):
        return value

    for error, words, function, arguments in (
        (
            TypeError,
            "'guard' is a lock, which cannot be written into a script: make it inside the function",
            locked,
            None,
        ),
        (TypeError, "'tensor' is a Tensor, which cannot be written into a script", tensors, None),
        (NameError, "missing uses 'not_defined_anywhere', which is not defined", missing, None),
        (TypeError, "a lambda cannot be written into a script: give it a name with `def`", lambda: 1, None),
        (TypeError, "'value' is a Tensor, which cannot be written into a script", argued, {"value": tensor}),
    ):
        with pytest.raises(error, match=words):
            export(function, tmp_path / "out", arguments)
    assert not (tmp_path / "out").exists()


def test_two_things_of_one_name_are_refused():
    def returning(n):
        def inner():
            return n

        return inner

    first, second = returning(1), returning(2)

    def outer():
        return first(), second()

    with pytest.raises(ValueError, match="two things are called 'n' in what the function uses: rename one"):
        Script(outer)


def test_a_class_of_a_cell_is_found_in_its_cell(monkeypatch):
    """Where Python looks for a class of a notebook, there is no file."""
    cell = "x = 1\n@decorated\nclass Cell:\n    y = 2\n\n    def method(self):\n        return self.y\n"
    monkeypatch.setitem(
        linecache.cache, "cell 7", (len(cell), None, cell.splitlines(keepends=True), "cell 7")
    )
    space = {"decorated": lambda thing: thing, "__name__": "a_notebook"}
    exec(compile(cell, "cell 7", "exec"), space)
    assert source_of(space["Cell"]) == cell.removeprefix("x = 1\n")


def test_names_are_those_from_outside():
    text = (
        "def f(a, b=OUTER):\n    c = a.attribute\n    class K:\n        d = 1\n        e = d\n    "
        "return [x + FREE for x in c], len(b)\n"
    )
    assert names_used(text) == ["OUTER", "FREE"]
    assert names_used("class C:\n    def f(self):\n        return f(self)\n") == ["f"]
    assert ast.parse(text)


def test_a_function_that_was_made_without_a_source_says_so():
    made = cloudpickle.loads(cloudpickle.dumps(eval("lambda: 1")))
    made.__name__ = "made"
    with pytest.raises(
        TypeError, match="the source of 'made' is not known here: define it in a cell or in a module"
    ):
        Script(made)
