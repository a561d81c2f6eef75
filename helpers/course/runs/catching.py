"""Would this test have caught it?  Faults tried in tests, all in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from helpers.course.exercises.in_ranks import PATIENCE
from helpers.course.exercises.meeting import Alone, meet
from helpers.course.training.comparable import WITHIN

if TYPE_CHECKING:
    from helpers.course.plots.distances import Catches, Found

Test = Callable[[Callable], object]  # a function -> a number, a tensor, or a list or dict of these
CONTROL = ""  # in the place of a fault's name: the right function, tried again


def caught(
    right: Callable,
    faults: Mapping[str, Callable],
    tests: Mapping[str, Test],
    title: str = "Faults, and the tests that catch them",
    ranks: int = 2,
    tolerance: float | Mapping[str, float] = WITHIN,
    against: int | None = None,
) -> Catches:
    """Which tests notice which faults: a test runs the right function and each faulty one in real ranks, and
    a fault is caught where the answers are further apart than the tolerance, or an error is raised.

    The right function is tried twice: the first row says that no test condemns what is right.  `against`
    another number of ranks its two answers differ by rounding.  That is the test's noise, and a fault is
    caught where it stands clearly above.

    Args:
        right, faults: functions that a test can call in each other's place, {name: function}.
        tests: {name: test}.  A test gets a function, and returns in each rank what it looks at: a loss, a
            norm, an update.  Distances are in lengths of the right answer, so that an update says more than
            the weights.  It must seed what is random.
        tolerance: of all tests, or {test: its tolerance}; `against` other ranks it is not used.
        against: the number of ranks that give the right answers; by default the same ranks do.

    Returns:
        A picture whose `tests` say by name which of them caught a fault.

    Raises:
        ValueError: without faults or tests, or where a test condemns the right function.
    """
    if not faults or not tests:
        raise ValueError("give at least one fault and one test, each {name: function}")
    from helpers.course.plots.distances import catches, clear_of, is_caught
    from helpers.tools.launcher.jobs import launch

    arguments = {"right": right, "tried": {CONTROL: right, **faults}, "tests": dict(tests)}
    if against:
        (arguments["due"], *_) = launch(
            answers, against, {"right": right, "tests": dict(tests)}, device="cpu"
        )
    reports = launch(try_all, ranks=ranks, arguments=arguments, device="cpu")
    found = {
        fault: {test: worst([report[fault][test] for report in reports]) for test in tests}
        for fault in arguments["tried"]
    }
    control = found.pop(CONTROL)
    each = dict(tolerance) if isinstance(tolerance, Mapping) else dict.fromkeys(tests, tolerance)
    if against:
        each = {test: clear_of(noise) for test, noise in control.items()}
    if wrong := [test for test, apart in control.items() if is_caught(apart, each[test])]:
        raise ValueError(
            f"{wrong[0]!r} condemns the right function too, whose two tries are {control[wrong[0]]} apart: "
            "seed what is random in it, or allow a larger tolerance"
        )
    return catches(found, {test: each[test] for test in tests}, title, control, bool(against))


def worst(found: list[Found]) -> Found:
    """Of the ranks' findings an error, else the largest distance; a NaN is the largest."""
    errors = [one for one in found if isinstance(one, str)]
    return errors[0] if errors else max(found, key=lambda one: float("inf") if one != one else one)


# --- in a rank


def answers(right: Callable, tests: Mapping[str, Test]) -> dict[str, object]:
    """{test: what it looks at with the right function}."""
    return {name: test(right) for name, test in tests.items()}


def try_all(
    right: Callable, tried: Mapping[str, Callable], tests: Mapping[str, Test], due: Mapping | None = None
) -> dict[str, dict[str, Found]]:
    """{function: {test: distance from the right answer, or an error's text}}.

    Args:
        due: the right answers, {test: answer}; by default the right function gives them here.

    Raises:
        RuntimeError: where a function leaves one rank waiting for another.
    """
    due, found = due or answers(right, tests), {}
    for fault, function in tried.items():
        found[fault] = {}
        for name, test in tests.items():
            found[fault][name] = _tried(test, function, due[name])
            _meet(fault or "the right function", name)
    return found


def _tried(test, function, due):
    try:
        return distance(test(function), due)
    except Exception as error:  # the fault's, which the test has thereby caught
        return f"{type(error).__name__}: {error}"


def _meet(fault, test):
    """Wait for all ranks: a message that one of them still waits for must not meet the next test's."""
    try:
        meet(PATIENCE)
    except Alone:
        raise RuntimeError(
            f"{fault!r} in {test!r}: a rank still waits for a message that another did not send; try a fault "
            "with which all ranks send the same messages"
        ) from None


def distance(one: object, due: object) -> float:
    """How far a test's answer is from the right one, in lengths of that; infinite for another shape."""
    import torch
    from torch.utils._pytree import tree_leaves

    flat, right = (
        torch.cat([torch.as_tensor(leaf, dtype=torch.float64).cpu().flatten() for leaf in tree_leaves(value)])
        for value in (one, due)
    )
    if flat.shape != right.shape:
        return float("inf")
    return ((flat - right).norm() / (right.norm() or 1)).item()
