"""Jobs that must work, on any learner's machine."""

import os
import shutil
import sys
import threading

import cloudpickle
import pytest
from helpers import DeepSpeedCommand, launch
from helpers.tools.launcher import jobs
from helpers.tools.launcher.failures import LaunchError
from helpers.tools.launcher.forked.forkservers import Forkserver
from helpers.tools.launcher.forked.imports import compiled_when_called
from tests.launcher.support import REPOSITORY, all_reduced

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.smoke
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_results_come_in_rank_order(ranks):
    reports = launch(lambda: (int(os.environ["RANK"]), all_reduced(1.0)), ranks)
    assert reports == [(rank, ranks) for rank in range(ranks)]
    assert reports.device == "cpu" and reports.command is None and reports.seconds > 0


def test_closures_lambdas_and_arguments():
    factor = 3

    def scaled(number):
        return factor * number + int(os.environ["RANK"])

    assert launch(scaled, 2, {"number": 5}) == [15, 16]
    assert launch(lambda: factor, 1) == [3]
    assert launch(lambda work: work(1), 1, {"work": scaled}) == [3]


def test_a_class_of_a_cell_comes_back():
    class Point:
        def __init__(self, x):
            self.x = x

    (point,) = launch(lambda: Point(7), 1)
    assert type(point) is Point and point.x == 7


def test_a_hundred_megabytes_come_back():
    size = 100_000_000
    (_, body) = launch(lambda: bytes(size) if os.environ["RANK"] == "1" else b"", 2)
    assert body == bytes(size)


def test_much_output_is_kept_and_shown_in_part(capsys):
    def talk():
        line = f"rank {os.environ['RANK']} " + 91 * "x" + "\n"
        for _ in range(100_000):
            sys.stdout.write(line)
        print("the end")

    reports = launch(talk, 2)
    shown = capsys.readouterr().out
    for rank, output in enumerate(reports.outputs):
        assert output == 100_000 * (f"rank {rank} " + 91 * "x" + "\n") + "the end\n"
    assert len(shown) < 2 * jobs.SHOWN_CHARACTERS
    assert shown.startswith("rank 0 x") and shown.endswith("the end\n") and "rank 1" not in shown
    assert f"{len(reports.outputs[0]) - jobs.SHOWN_CHARACTERS:,} more characters of rank 0" in shown


@pytest.mark.smoke
def test_output_of_every_kind_is_captured(capfd):
    def talk():
        import ctypes

        print("from Python")
        os.system("echo from a program")
        ctypes.CDLL(None).printf(b"from C\n")
        print("from stderr", file=sys.stderr)

    reports = launch(talk, 1)
    assert sorted(reports.outputs[0].splitlines()) == [
        "from C",
        "from Python",
        "from a program",
        "from stderr",
    ]
    assert capfd.readouterr().out == reports.outputs[0]


def test_a_launch_from_another_thread():
    reports = []
    thread = threading.Thread(target=lambda: reports.extend(launch(lambda: os.environ["RANK"], 2)))
    thread.start()
    thread.join()
    assert reports == ["0", "1"]


def test_machines_that_lack_something(kernels, tmp_path):
    """A lock that a killed job left in the cache of compiled extensions; no compiler and no ninja; a home
    that cannot be written to."""
    python = (
        f"py{sys.version_info.major}{sys.version_info.minor}_cpu"  # a folder that torch adds in some versions
    )
    for folder in ("deepspeed_shm_comm", f"{python}/deepspeed_shm_comm"):
        (tmp_path / "stale" / folder).mkdir(parents=True)
        (tmp_path / "stale" / folder / "lock").touch()
    lacking = [
        *kernels(TORCH_EXTENSIONS_DIR=str(tmp_path / "stale")),
        *kernels(PATH=str(tmp_path / "empty"), TORCH_EXTENSIONS_DIR=str(tmp_path / "cold")),
        *kernels(HOME="/dev/null/home", TORCH_EXTENSIONS_DIR="/dev/null/home/extensions"),
    ]
    for kernel in lacking:
        kernel.start(SUM)
    for kernel in lacking:
        assert kernel.answer() == [[2.0, 2.0], None]


def test_two_kernels_at_once(kernels):
    pair = kernels(2)
    for kernel in pair:
        kernel.start(f"{SUM}\nvalue = [list(launch(job, 2)) for _ in range(20)]")
    for kernel in pair:
        assert kernel.answer() == [20 * [[2.0, 2.0]], None]


def test_an_edited_helper_counts_in_the_next_launch(kernels, tmp_path):
    shutil.copytree(
        REPOSITORY / "helpers", tmp_path / "helpers", ignore=shutil.ignore_patterns("__pycache__")
    )
    edited = tmp_path / "helpers" / "edited.py"
    edited.write_text("VALUE = 'old'\n")
    (kernel,) = kernels(directory=tmp_path)
    cell = "from helpers import edited\nfrom helpers import launch\n"
    cell += (
        "def job():\n    from helpers.edited import VALUE\n    return VALUE\nvalue = [edited.VALUE, "
        "*launch(job, 2)]"
    )
    assert kernel.run(cell) == ["old", "old", "old"]
    assert not any("changed" in line for line in kernel.printed)
    edited.write_text("VALUE = 'edited'\n")
    assert kernel.run(cell) == ["old", "edited", "edited"]
    assert "note: edited.py changed since this kernel imported it" in "".join(kernel.printed)


SUM = """
from helpers import launch

def job():
    import deepspeed, torch
    deepspeed.init_distributed()
    total = torch.ones(())
    torch.distributed.all_reduce(total)
    return total.item()

value = list(launch(job, 2))
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has batch work")
def test_ranks_and_their_threads_are_batch_work():
    """Else gloo's threads take turns from the ranks that they wait for."""

    def policies():
        all_reduced(1.0)
        return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}

    assert launch(policies, 2, device="cpu") == 2 * [{os.SCHED_BATCH}]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_random_numbers_are_those_of_fresh_processes():
    """numpy and Python draw anew in each rank and launch, torch the same everywhere."""

    def draw():
        import random

        import numpy
        import torch

        return (int(numpy.random.randint(2**62)), random.random(), torch.initial_seed())

    drawn = [*launch(draw, 2), *launch(draw, 2)]
    numpy_drawn, python_drawn, torch_seeds = (set(numbers) for numbers in zip(*drawn))
    assert (len(numpy_drawn), len(python_drawn), len(torch_seeds)) == (4, 4, 1)


def test_what_ranks_share_is_never_searched_for_garbage_and_torchs_compiler_is_imported_by_who_needs_it():
    def look():
        import gc

        import torch
        from deepspeed.runtime.zero.muon import original_muon  # decorates functions with torch.compile

        assert "torch._inductor.compile_fx" not in sys.modules
        assert callable(original_muon.zeropower_via_newtonschulz5)
        doubled = torch.compile(lambda x: 2 * x, backend="eager")
        return (
            gc.isenabled(),
            gc.get_freeze_count() > gc.get_count()[0],
            torch.compile.__module__,
            doubled(torch.ones(())).item(),
        )

    assert launch(look, 1) == [(True, True, "torch", 2.0)]


def test_what_a_library_decorates_while_it_is_preloaded_is_compiled_when_it_is_called_first():
    compiled = []

    def compiler(function, **options):
        compiled.append((function.__name__, options))
        return lambda x: -function(x)

    decorate = compiled_when_called(compiler)

    @decorate
    def plain(x):
        return x

    @decorate(mode="default")
    def optioned(x):
        return x

    assert compiled == [] and plain.__name__ == "plain"
    assert [plain(1), plain(2), optioned(3)] == [-1, -2, -3]
    assert compiled == [("plain", {}), ("optioned", {"mode": "default"})]


def test_ranks_are_forked_from_one_thread(kernels):
    """Also where the environment asks for more, as a cluster's does; ranks have what LAUNCH_THREADS asks."""
    (kernel,) = kernels(OMP_NUM_THREADS="5", OPENBLAS_NUM_THREADS="3", LAUNCH_THREADS="3")
    look = (
        "lambda: [len(os.listdir(f'/proc/{os.getppid()}/task')), "
        "__import__('torch').get_num_threads(), os.environ['OPENBLAS_NUM_THREADS']]"
    )
    assert kernel.run(f"import os\nfrom helpers import launch\nvalue = list(launch({look}, 1))") == [
        [1, 3, "3"]
    ]
    assert not [line for line in kernel.printed if "thread" in line]


def test_what_is_preloaded_is_in_every_rank_of_every_forkserver_and_what_cannot_be_is_said_once(kernels):
    (kernel,) = kernels()
    kernel.start("from helpers import preload; preload('no_such_library.part')")
    assert kernel.answer()[1] == [
        "ModuleNotFoundError",
        "no_such_library is not installed here: there is nothing to preload",
    ]
    loaded = (
        "launch(lambda: [len(os.listdir(f'/proc/{os.getppid()}/task')), 'xml.dom.minidom' in sys.modules], 2)"
    )
    assert (
        kernel.run(f"import os, sys\nfrom helpers import launch, preload\nvalue = list({loaded})")
        == [[1, False]] * 2
    )
    assert (
        kernel.run(f"preload('xml.dom.minidom.parseString', 'json')\nvalue = list({loaded})")
        == [[1, True]] * 2
    )
    assert not [line for line in kernel.printed if "could not be imported" in line]
    kernel.run("from helpers.tools.launcher.forked import forkservers; forkservers.forget('cpu')")
    assert kernel.run(f"value = list({loaded})") == [[1, True]] * 2
    assert kernel.run("preload('json.no_such_part'); value = list(launch(lambda: 1, 2))") == [1, 1]
    assert kernel.works()
    assert [line for line in kernel.printed if "no_such_part" in line] == [
        "note: json.no_such_part could not be imported before the ranks start: AttributeError: "
        "module 'json' has no attribute 'no_such_part'\n"
    ]


@pytest.mark.parametrize("on, spares", [(None, range(2, 26)), (DeepSpeedCommand(), range(2, 6))])
def test_a_job_for_which_there_are_too_few_descriptors_leaves_none_open(on, spares):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.listdir("/proc/self/fd")
    free = [descriptor for descriptor in range(1000) if not os.path.exists(f"/proc/self/fd/{descriptor}")]
    for spare in spares:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], hard))
        try:
            with pytest.raises(LaunchError, match="^the job could not be started: .*Too many open files"):
                launch(lambda: None, 4, on=on)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert os.listdir("/proc/self/fd") == before


def test_a_forkserver_for_which_there_are_too_few_descriptors_leaves_none_open():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.listdir("/proc/self/fd")
    free = [descriptor for descriptor in range(1000) if not os.path.exists(f"/proc/self/fd/{descriptor}")]
    for spare in range(8):  # with 8 it would start
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], hard))
        try:
            with pytest.raises(OSError, match="Too many open files") as caught:
                Forkserver("cpu")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert os.listdir("/proc/self/fd") == before, (
            f"{caught.value}, with {spare} spare"
        )  # while the error, and what it refers to, is there
