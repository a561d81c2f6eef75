"""Free memory and OOM kills as containers and services see them, read from trees made here."""

import signal
import threading
from types import SimpleNamespace

import pytest
from helpers.tools.launcher import resources
from helpers.tools.launcher.failures import Outcome, failure

GB = 10**9


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Write a tree of files below a root, on a machine with 100 GB available: `tree({path: text}) ->
    root`."""
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * GB))

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return write


def group_2(folder, limit, used, **stat):
    lines = "\n".join(f"{name} {number}" for name, number in {"anon": 1, **stat}.items())
    return {f"{folder}/memory.max": limit, f"{folder}/memory.current": used, f"{folder}/memory.stat": lines}


def test_without_control_groups_the_machine_counts(tree):
    assert resources.free_memory(tree({})) == 100 * GB


def test_page_cache_that_can_be_given_back_is_not_used_memory(tree):
    files = group_2(
        "sys/fs/cgroup", 8 * GB, 7 * GB, inactive_file=4 * GB, active_file=1 * GB, slab_reclaimable=1 * GB
    )
    assert resources.free_memory(tree({"proc/self/cgroup": "0::/", **files})) == 7 * GB


def test_page_cache_that_is_yet_to_be_written_and_shared_memory_are_used_memory(tree):
    held = {
        "file": 6 * GB,
        "shmem": 3 * GB,
        "inactive_file": 2 * GB,
        "active_file": 1 * GB,
        "file_dirty": GB // 2,
        "file_writeback": GB // 4,
    }
    files = group_2("sys/fs/cgroup", 8 * GB, 7 * GB, **held)
    assert resources.free_memory(tree({"proc/self/cgroup": "0::/", **files})) == 1 * GB + 3 * GB - 3 * GB // 4


def test_files_that_programs_have_mapped_are_used_memory(tree):
    files = group_2(
        "sys/fs/cgroup", 8 * GB, 7 * GB, inactive_file=2 * GB, active_file=3 * GB, file_mapped=1 * GB
    )
    assert resources.free_memory(tree({"proc/self/cgroup": "0::/", **files})) == 5 * GB


def test_more_to_be_written_than_there_is_page_cache_takes_nothing_away(tree):
    """The numbers are counted one after another, and pages on their way to swap are among what is written."""
    files = group_2(
        "sys/fs/cgroup", 8 * GB, 7 * GB, inactive_file=1 * GB, file_writeback=2 * GB, slab_reclaimable=1 * GB
    )
    assert resources.free_memory(tree({"proc/self/cgroup": "0::/", **files})) == 2 * GB


def test_the_least_room_of_a_group_and_its_ancestors_counts(tree):
    files = {"proc/self/cgroup": "0::/user.slice/job.scope/inner"}
    files |= group_2("sys/fs/cgroup/user.slice", 6 * GB, 5 * GB, inactive_file=1 * GB)
    files |= group_2("sys/fs/cgroup/user.slice/job.scope", 5 * GB, 1 * GB)
    files |= group_2("sys/fs/cgroup/user.slice/job.scope/inner", "max", 1 * GB)
    assert resources.free_memory(tree(files)) == 2 * GB


def test_a_neighbour_group_does_not_count(tree):
    files = {"proc/self/cgroup": "0::/mine", **group_2("sys/fs/cgroup/other", 1 * GB, 1 * GB)}
    assert resources.free_memory(tree(files)) == 100 * GB


def test_more_used_than_allowed_is_no_room(tree):
    assert (
        resources.free_memory(tree({"proc/self/cgroup": "0::/", **group_2("sys/fs/cgroup", 1 * GB, 2 * GB)}))
        == 0
    )


def test_this_machine():
    assert resources.free_memory() > 0
    assert resources.out_of_memory_kills() >= 0


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/mine",
            "sys/fs/cgroup/mine/memory.events": "oom 5\noom_kill 3\noom_group_kill 0",
        },
        {"proc/self/cgroup": "0::/", "proc/vmstat": "nr_free 9\noom_kill 3"},
    ],
)
def test_kills_are_counted_in_the_own_group_and_else_on_the_machine(tree, files):
    assert resources.out_of_memory_kills(tree({"proc/vmstat": "oom_kill 77", **files})) == 3


@pytest.mark.parametrize(
    "number, blamed", [(signal.SIGKILL, True), (signal.SIGSEGV, False), (signal.SIGABRT, False)]
)
def test_only_a_sigkill_is_blamed_on_memory(number, blamed):
    message = str(failure([Outcome(0, status=-number, ended_at=1.0)], out_of_memory=True))
    assert ("ran out of memory" in message) == blamed


def test_an_interrupt_leaves_no_module_half_imported(tmp_path, monkeypatch):
    """As torch was, whose import took the seconds of a first launch on a machine with GPUs."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(1)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    interrupt = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        resources.import_whole("slow_to_import")
    interrupt.join()
    import slow_to_import

    assert slow_to_import.whole


def test_what_a_launch_sends_is_looked_at_with_all_of_torch(kernels):
    """An interrupted launch may have left its import under way, in a thread."""
    (kernel,) = kernels()
    kernel.run("import sys, threading, time\nimport psutil\nfrom helpers import launch")
    kernel.run(
        "threading.Thread(target=__import__, args=('torch',), daemon=True).start()\nwhile "
        "'torch' not in sys.modules: time.sleep(0.001)"
    )
    cell = "value = list(launch(lambda: [len(psutil.__name__), time.tzname], 2, device='cpu'))"
    reports = kernel.run(cell)
    assert [report[0] for report in reports] == [6, 6]


def test_gpus_are_counted_without_an_import_where_torch_has_none(monkeypatch):
    monkeypatch.setattr(resources.Path, "exists", lambda path: True)  # of a driver, say
    monkeypatch.setattr(resources, "torch_has_cuda", lambda: False)
    monkeypatch.setattr(resources, "import_whole", lambda name: pytest.fail(f"{name} was imported"))
    assert resources.gpu_count() == 0


def test_what_the_installed_torch_was_built_for():
    import torch

    assert resources.torch_has_cuda() == (torch.version.cuda is not None)


def test_a_module_that_fails_is_left_to_who_imports_it(capsys):
    resources.import_whole("no_such_module_of_this_name")
    assert capsys.readouterr() == ("", "")
