"""What an answer does to its arguments, or returns in the place of plain data, never changes what it is
compared with; and nothing that it does ends a check or floods its cell."""

import itertools
import os
import signal
import sys
import threading
import time

import numpy
import psutil
import pytest
import torch
from helpers.course.exercises import calling, comparing
from helpers.course.exercises.formulas import Exercise
from helpers.course.exercises.reading import is_unwritten
from helpers.tools import theory


def counted(groups):
    return len(groups["of"]) + sum(map(sum, groups["of"])) + groups["tensor"].sum().item()


NESTED = Exercise(
    reference=counted,
    cases=tuple({"groups": {"of": [[1, 2], [3]] * size, "tensor": torch.ones(size)}} for size in (1, 2, 3)),
    mistakes={"the groups count too": ("return", 'groups["of"].clear()\n    return 0 if groups else')},
)


def empties(groups):
    while groups["of"]:
        groups["of"].pop()
    groups["tensor"].zero_()
    return 0


def empties_what_is_inside(groups):
    for group in groups["of"]:
        group.clear()
    groups["of"] *= 0
    groups["tensor"].resize_(0)
    return 0


KEPT = []


def empties_the_arguments_of_earlier_calls(groups, seen=KEPT):
    seen.append(groups)
    for earlier in seen:
        empties(earlier)
    return 0


@pytest.mark.parametrize(
    "answer", [empties, empties_what_is_inside, empties_the_arguments_of_earlier_calls, lambda groups: 0]
)
def test_an_answer_that_changes_its_arguments_is_wrong_and_changes_no_later_check(answer):
    assert NESTED.verdict(answer).startswith("not yet: for groups=")
    assert NESTED.verdict(NESTED.reference).startswith("correct for 3 cases")


def test_a_right_answer_that_consumes_its_arguments_is_right():
    def consumes(groups):
        total = len(groups["of"]) + groups["tensor"].sum().item()
        while groups["of"]:
            total += sum(groups["of"].pop())
        return total

    assert NESTED.verdict(consumes) == NESTED.verdict(consumes) == "correct for 3 cases"


def test_a_mistake_that_changes_its_arguments_changes_no_verdict():
    assert NESTED.verdict(lambda groups: 0).endswith("; the groups count too")
    assert NESTED.verdict(NESTED.reference).startswith("correct")


def test_the_list_of_which_the_cases_were_made_is_not_that_of_the_check():
    shared = [1, 2, 3]
    exercise = Exercise(reference=lambda numbers: sum(numbers), cases=({"numbers": shared},))
    shared.clear()
    assert exercise.verdict(lambda numbers: 6).startswith("correct")


def test_a_case_that_cannot_be_given_twice_is_refused():
    with pytest.raises(ValueError, match="a case .* cannot be copied.*list"):
        Exercise(reference=sum, cases=({"numbers": (number for number in (1, 2))},))


def test_an_answer_that_changes_what_the_reference_reads_is_wrong(monkeypatch):
    exercise = Exercise(
        reference=lambda size: theory.wire_bytes("all_reduce", size, 4), cases=({"size": 8}, {"size": 16})
    )

    def patches(size):
        monkeypatch.setattr(theory, "wire_bytes", lambda *_: 0)
        return 0

    for _ in range(2):
        assert exercise.verdict(patches).startswith("not yet: for size=8 your function gives 0 where 12")


class Everything:
    __slots__ = ()

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __abs__(self):
        return 0

    __hash__ = None
    __le__ = __lt__ = __ge__ = __gt__ = __eq__
    __sub__ = __rsub__ = __float__ = __abs__


class Whole(Everything, int):
    pass


class Real(Everything, float):
    __float__ = float.__float__


class Text(Everything, str):
    pass


class Several(Everything, list):
    def __len__(self):
        return 2

    def __iter__(self):
        return iter([1, 2])


class AnyTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        return torch.tensor(True)


class AnyArray(Everything, numpy.ndarray):
    pass


ODD = {
    "an object": Everything(),
    "a class": Everything,
    "a bool": True,
    "a bool of numpy": numpy.True_,
    "a whole number": Whole(7),
    "a real number": Real(7),
    "nan": float("nan"),
    "infinity": float("inf"),
    "nan of numpy": numpy.float32("nan"),
    "a text": Text("3"),
    "a number with a part that is not real": 3 + 0j,
    "a generator": (number for number in (3,)),
    "a list": Several([7, 8]),
    "a set": {3},
    "a tensor on meta": torch.empty((), device="meta"),
    "a tensor of another class": torch.tensor(7.0).as_subclass(AnyTensor),
    "an array of another class": numpy.array(7.0).view(AnyArray),
    "a tensor of nan": torch.tensor(float("nan")),
    "a dict": {"3": 3},
    "a function": len,
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_what_is_returned_in_the_place_of_a_value_equals_nothing(value):
    for right in (3, 3.0, [1, 2], "text"):
        exercise = Exercise(reference=lambda right=right: right, cases=({},))
        assert exercise.verdict(lambda: value).startswith("not yet: "), right
        assert comparing.difference(comparing.plain(value), comparing.plain(right)), right


@pytest.mark.parametrize(
    "value",
    [3, 3.0, numpy.int64(3), numpy.float32(3), numpy.longdouble(3), Whole(3), Real(3)],
    ids=lambda value: type(value).__name__,
)
def test_a_number_of_any_class_is_what_it_says(value):
    assert Exercise(reference=lambda: 3, cases=({},)).verdict(lambda: value).startswith("correct")


def test_a_list_that_is_changed_after_it_was_returned_is_what_it_was():
    out = []

    def reuses(size):
        out[:] = range(size)
        return out

    exercise = Exercise(reference=lambda size: list(range(size)), cases=({"size": 2}, {"size": 3}))
    assert exercise.verdict(reuses).startswith("correct for 2 cases")


@pytest.mark.parametrize("expected", [float("inf"), [1.0, float("inf")]])
def test_no_finite_number_is_infinity(expected):
    finite = 1.0 if isinstance(expected, float) else [1.0, 2.0]
    assert comparing.difference(finite, expected)
    assert comparing.difference(expected, expected) is None


class Shy:
    def __repr__(self):
        raise ValueError("no")


class Wordless:
    def __repr__(self):
        return 3


class Slow:
    def __repr__(self):
        while True:
            pass


class ShyError(Exception):
    def __str__(self):
        raise ValueError("no")


def forever():
    while True:
        pass


def forever_and_deaf():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def calls_itself():
    return calls_itself() + 1


def raises(error):
    def answer():
        raise error

    return answer


def nested():
    value = []
    value.append(value)
    return value


FLOODS = {
    "thousands of digits": (lambda: 10**9000, "a number of 9,001 digits"),
    "hundreds of digits": (lambda: -(10**400), "a number of 401 digits"),
    "a long list": (lambda: [0.5] * 3_000_000, "3,000,000 elements"),
    "a long text": (lambda: "x" * 10**6, "where a number is asked for"),
    "a long dict": (lambda: dict.fromkeys(range(10**5)), "where a number is asked for"),
    "a large tensor": (lambda: torch.ones(1000, 1000), "a tensor of shape (1000, 1000)"),
    "a list of itself": (nested, "where a number is asked for"),
    "no end": (itertools.count, "where a number is asked for"),
    "a repr that raises": (Shy, "where a number is asked for"),
    "a repr that is no text": (Wordless, "where a number is asked for"),
    "a repr without an end": (Slow, "where a number is asked for"),
    "an exit": (lambda: sys.exit("gone"), "raised SystemExit: gone"),
    "an exit without words": (raises(SystemExit), "raised SystemExit"),
    "an interrupt": (raises(KeyboardInterrupt), "raised KeyboardInterrupt"),
    "a generator's end": (raises(GeneratorExit), "raised GeneratorExit"),
    "a base exception": (raises(BaseException("all")), "raised BaseException: all"),
    "an error without words": (raises(ShyError()), "raised ShyError"),
    "an error with too many words": (raises(ValueError("x" * 10**7)), "raised ValueError: xxx"),
    "a recursion": (calls_itself, "raised RecursionError"),
    "an end": (lambda: os._exit(0), "ended Python itself"),
    "a fork": (lambda: os.fork() and None, "returns nothing"),
    "a loop within C": (lambda: sum(itertools.count()), "was still running after 1 s"),
    "a loop": (forever, "was still running after 1 s"),
    "a loop that catches all": (forever_and_deaf, "was still running after 1 s"),
}


@pytest.mark.parametrize("answer, words", FLOODS.values(), ids=FLOODS)
def test_whatever_a_formula_does_is_a_short_verdict(answer, words, monkeypatch):
    monkeypatch.setattr(calling, "LIMIT", 1.0 if "1 s" in words else 30.0)
    before, start = signal.getsignal(signal.SIGALRM), time.monotonic()
    verdict = Exercise(reference=lambda: 3, cases=({},)).verdict(answer)
    assert verdict.startswith("not yet: ") and words in verdict and len(verdict) < 500
    assert time.monotonic() - start < 30
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def children():
    return {child.pid for child in psutil.Process().children()}


def interrupt_what_runs(others):
    """Interrupt this process when it has a new child: during a fork Python may swallow an interrupt."""
    while children() <= others:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_by_the_learner_ends_the_check():
    others = children()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    threading.Thread(target=interrupt_what_runs, args=(others,)).start()
    with pytest.raises(KeyboardInterrupt):
        Exercise(reference=lambda: 3, cases=({},)).verdict(forever)
    signal.signal(signal.SIGINT, before)
    assert children() <= others  # nothing was left behind


def test_what_a_formula_prints_is_shown_to_its_beginning(capsys):
    def prints(times):
        for number in range(times):
            print("a line", number)
        return times

    exercise = Exercise(reference=lambda times: times, cases=({"times": 2},))
    assert (
        exercise.verdict(prints).startswith("correct") and capsys.readouterr().out == "a line 0\na line 1\n"
    )
    exercise = Exercise(reference=lambda times: times, cases=({"times": 10**5},))
    assert exercise.verdict(prints).startswith("correct")
    said = capsys.readouterr().out
    assert (
        said.startswith("a line 0\n") and said.endswith("[... more is not shown ...]\n") and len(said) < 3000
    )


@pytest.mark.parametrize(
    "value", [Shy(), Wordless(), Slow(), [0.5] * 10**6, 10**9000], ids=lambda value: type(value).__name__
)
def test_a_value_in_the_place_of_a_function_is_named_in_short(value):
    verdict = Exercise(reference=lambda: 3, cases=({},)).verdict(value)
    assert verdict.startswith("not yet: the check needs your function itself, not ") and len(verdict) < 200


@pytest.mark.parametrize("written", [forever, raises(KeyboardInterrupt), raises(SystemExit)])
def test_a_loop_and_a_raise_are_written(written):
    assert not is_unwritten(written)
