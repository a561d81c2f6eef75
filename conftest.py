"""Tiers of tests, by what they need: `-m unit`, `-m ranks`, `-m launcher`, `-m smoke`, `-m lessons`,
`-m beside`.

unit      no ranks: formulas, figures, words.  A unit test that starts ranks, or a notebook's kernel, fails.
ranks     real ranks that are counted, not timed: several such tests may share the machine.
launcher  real faults within bounds of time: beside nothing but each other.
smoke     the few tests of the launcher that `make test` runs.
lessons   stored notebooks, each in one process.
beside    stored notebooks that no lesson needs: companions in `notebooks/more/`, and the page of claims.

With several processes a file's tests stay in one of them (`--dist loadfile`): they share a kernel, or costly
fixtures.
"""

import gc
import itertools
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from helpers.course.syllabus.outline import CLAIMS
from helpers.paths import MORE
from tests.after_run_all import with_exercises_again

gc.disable()  # until everything is imported: nearly nothing of it is garbage
TIERS = ("unit", "ranks", "launcher", "lessons", "beside")
LONGEST = (
    "test_raises.py",
    "test_deepspeed_command.py",
    "test_slurm.py",
    "test_machines.py",
    "test_interrupt.py",
)  # launcher files, begun first
REHEARSING = ("tests/rehearsal/", "tests/theory/test_planner.py", "notebooks/17_", "notebooks/more/17_")


def tier(item):
    """By place; what starts ranks outside of the launcher's tests says so with `pytest.mark.ranks`."""
    place = item.path.relative_to(item.config.rootpath).parts
    if item.path.suffix == ".ipynb":
        return "beside" if MORE in place or place[-1] == CLAIMS else "lessons"
    if place[:2] == ("tests", "launcher"):
        return "launcher"
    return "ranks" if item.get_closest_marker("ranks") else "unit"


def pytest_configure(config):
    for name in (*TIERS, "smoke"):  # smoke: the few of the launcher that `make test` runs
        config.addinivalue_line("markers", f"{name}: a tier, see conftest.py")
    config.sockets = Path(tempfile.mkdtemp(prefix="kernels-"))
    reach_kernels_through_files(config.sockets)


def pytest_unconfigure(config):
    shutil.rmtree(config.sockets, ignore_errors=True)


def reach_kernels_through_files(folder):
    """Stored notebooks' kernels listen on files.  A free port that was chosen for one may be taken by a rank
    of another before it is bound."""
    try:
        from nbval import kernel
    except ImportError:
        return
    manager, numbers = kernel.KernelManager, itertools.count()
    kernel.KernelManager = lambda **options: manager(
        transport="ipc", ip=str(folder / str(next(numbers))), **options
    )


def too_old_for_rehearsals():
    """Why nothing can be rehearsed here, or None."""
    from helpers.tools.rehearsal.rehearsing import RehearsalError, check_torch

    try:
        check_torch()
    except RehearsalError as reason:
        return str(reason)
    return None


def pytest_collection_modifyitems(items, config):
    """Mark every test with its tier.  Files with ranks come first, since they take longest, and those with
    none fill what is left; of the launcher's those that take longest: one that began last would go on
    alone."""
    items[:] = with_exercises_again(items)
    reason = too_old_for_rehearsals()
    for item in items:
        item.add_marker(tier(item))
        if reason and item.path.relative_to(config.rootpath).as_posix().startswith(REHEARSING):
            item.add_marker(pytest.mark.skip(reason=reason))
    order = {"ranks": 0, "lessons": 1, "beside": 1, "unit": 2, "launcher": 3}
    first = {}
    for item in items:
        first[item.path] = min(
            first.get(item.path, 3),
            min(order[mark.name] for mark in item.iter_markers() if mark.name in order),
        )
    last = len(LONGEST)
    items.sort(
        key=lambda item: (
            first[item.path],
            LONGEST.index(item.path.name) if item.path.name in LONGEST else last,
        )
    )


def pytest_collection_finish():
    """What was imported and collected stays to the end, and is not looked through again and again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Where a run must end in time, what of the longer lane has not begun by TESTS_END, in seconds since
    1970, is skipped."""
    is_of_the_first = any(map(item.get_closest_marker, ("unit", "lessons", "smoke")))
    if not is_of_the_first and time.time() > float(os.environ.get("TESTS_END", "inf")):
        pytest.skip("no time was left in this run (TESTS_END)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Around fixtures too, whatever their scope."""
    if not item.get_closest_marker("unit"):
        return (yield)
    from jupyter_client.provisioning import local_provisioner
    from helpers.tools.launcher import jobs
    from helpers.tools.launcher.forked import forkservers as forked

    def refuse(*arguments, **options):
        raise AssertionError(
            "a unit test started ranks, or a kernel, which may: mark it with pytest.mark.ranks"
        )

    with pytest.MonkeyPatch.context() as patch:
        for place, name in (
            (forked, "warm"),
            (jobs, "start"),
            (local_provisioner, "launch_kernel"),
        ):
            patch.setattr(place, name, refuse)
        return (yield)
