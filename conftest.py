"""Tiers of tests, by what they need: `-m unit`, `-m ranks`, `-m launcher`, `-m lessons`.

unit      no ranks: formulas, figures, words.  A unit test that starts ranks fails.
ranks     real ranks that are counted, not timed: several such tests may share the machine.
launcher  real faults within bounds of time: alone on the machine.
lessons   stored notebooks, each in one process.
"""

import pytest

TIERS = ("unit", "ranks", "launcher", "lessons")


def tier(item):
    """By place; what starts ranks outside of the launcher's tests says so with `pytest.mark.ranks`."""
    place = item.path.relative_to(item.config.rootpath).parts
    if item.path.suffix == ".ipynb":
        return "lessons"
    if place[:2] == ("tests", "launcher"):
        return "launcher"
    return "ranks" if item.get_closest_marker("ranks") else "unit"


def pytest_configure(config):
    for name in TIERS:
        config.addinivalue_line("markers", f"{name}: a tier, see conftest.py")
    config.addinivalue_line("markers", "together: tests of a file that share a costly fixture, and so a process")


def pytest_collection_modifyitems(items):
    """Mark every test with its tier; what shares a kernel or a fixture of a module stays in one process; the longest come first."""
    for item in items:
        item.add_marker(tier(item))
        if item.path.suffix == ".ipynb" or item.get_closest_marker("together"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    items.sort(key=lambda item: item.path.suffix != ".ipynb")


@pytest.fixture(autouse=True)
def no_ranks_in_unit_tests(request, monkeypatch):
    if request.node.get_closest_marker("unit"):
        from helpers.launcher import forked

        def refuse(*arguments):
            raise AssertionError("a unit test started ranks: mark it with pytest.mark.ranks")

        monkeypatch.setattr(forked, "Forkserver", refuse)
