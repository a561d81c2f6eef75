"""A kernel in an unusual state: stopped for a while, without its folder or its standard descriptors, or with
helpers that were edited."""

import os
import shutil
import signal
import time

import pytest
from helpers.tools.launcher.environment import threads_of
from tests.launcher.support import REPOSITORY

WORK = "import os, time\nfrom helpers import launch\ndef job(folder):\n"
WORK += (
    "    open(f'{folder}/ready-' + os.environ['RANK'], 'w').close()\n    time.sleep(SLEEP)\n    return 7\n"
)


@pytest.mark.parametrize("sleep, expected", [(2, [[7, 7], None]), (6, [[7, 7], None]), (60, None)])
def test_time_in_which_the_kernel_is_stopped_does_not_count(kernels, sleep, expected):
    """Its ranks, which go on meanwhile, have not hung; but the time that is left still ends a job."""
    (kernel,) = kernels()
    kernel.works()
    launched = f"value = list(launch(job, 2, {{'folder': {str(kernel.folder)!r}}}, timeout=5))"
    kernel.start(WORK.replace("SLEEP", str(sleep)) + launched)
    assert kernel.ready()
    os.kill(kernel.process.pid, signal.SIGSTOP)
    time.sleep(8)
    os.kill(kernel.process.pid, signal.SIGCONT)
    value, error = kernel.answer()
    if expected:
        assert [value, error] == expected
    else:
        assert error[0] == "RankError" and error[1].startswith(
            "ranks 0, 1 of 2 hung: still running after 5 s"
        )


@pytest.mark.parametrize("warm", [False, True])
def test_a_kernel_whose_folder_was_removed_says_so(kernels, tmp_path, warm):
    (tmp_path / "gone").mkdir()
    (kernel,) = kernels(directory=tmp_path / "gone", PYTHONPATH=str(REPOSITORY))
    if warm:
        assert kernel.works()
    shutil.rmtree(tmp_path / "gone")
    kernel.start("from helpers import launch; launch(lambda: 7, 2)")
    _, error = kernel.answer()
    assert error[0] == "LaunchError" and error[1].startswith(
        "the folder in which this kernel runs was removed"
    )
    kernel.run(f"import os; os.chdir({str(tmp_path)!r})")
    assert kernel.works()


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)])
def test_a_kernel_without_its_standard_descriptors_launches(kernels, closed):
    """The cells come and go through copies of them."""
    (kernel,) = kernels()
    kernel.run("import os, sys\ncells = os.fdopen(os.dup(0))")
    cell = "saved = [os.dup(number) for number in range(3)]\n"
    cell += "".join(f"os.close({number})\n" for number in closed)
    cell += "from helpers import launch\ntry:\n    value = list(launch(lambda: 7, 2))\nfinally:\n"
    cell += "    for number, copy in enumerate(saved):\n        os.dup2(copy, number)\n        os.close(copy)"
    assert kernel.run(cell) == [7, 7]


def copied(tmp_path):
    shutil.copytree(
        REPOSITORY / "helpers", tmp_path / "helpers", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "helpers" / "edited.py"


def test_a_helper_that_was_imported_or_reloaded_after_its_edit_is_not_stale(kernels, tmp_path):
    edited = copied(tmp_path)
    edited.write_text("VALUE = 'first'\n")
    (kernel,) = kernels(directory=tmp_path)

    def said():
        kernel.printed.clear()
        kernel.run("value = list(launch(lambda: 7, 1))")
        return [line for line in kernel.printed if "changed since" in line]

    kernel.run("from helpers import launch\nlaunch(lambda: 7, 1)")
    edited.write_text("VALUE = 'second'\n")
    kernel.run("from helpers import edited")
    assert said() == []
    edited.write_text("VALUE = 'third'\n")
    os.utime(edited, (1, 1))  # as if it were an old file
    assert said() == [
        "note: edited.py changed since this kernel imported it: ranks use the new file, this kernel the old; "
        "restart the kernel\n"
    ]
    kernel.run("import importlib; importlib.reload(edited)")
    assert said() == []
    edited.touch()
    assert said() == []


@pytest.mark.parametrize(
    "variables, threads",
    [
        ({}, 1),
        ({"LAUNCH_THREADS": "4"}, 4),
        ({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"}, 1),
        ({"OMP_NUM_THREADS": "3", "LAUNCH_THREADS": "2"}, 2),
    ],
)
def test_the_threads_of_a_rank(variables, threads):
    assert threads_of(variables) == threads


@pytest.mark.parametrize("number", ["", "many", "-2", "0", "4,2"])
def test_what_asks_for_no_number_of_threads_is_refused(number):
    with pytest.raises(ValueError, match="LAUNCH_THREADS is .* such as 4"):
        threads_of({"LAUNCH_THREADS": number})


@pytest.mark.parametrize("number", ["4,2", "", "many"])
def test_ranks_start_whatever_the_environment_says_of_threads(kernels, number):
    (kernel,) = kernels(OMP_NUM_THREADS=number, MKL_NUM_THREADS="", OMP_DYNAMIC="", KMP_AFFINITY="")
    cell = (
        "from helpers import launch\nvalue = list(launch(lambda: __import__('torch').get_num_threads(), 2))"
    )
    assert kernel.run(cell) == [1, 1]
