"""What is read from a learner's function without running it."""

import functools
import linecache

import pytest
import torch
from helpers.course.exercises.reading import forgot_return, is_unwritten, misfit, picked_up, result_expected


def dots(x):
    """Doc."""
    ...  # your code


def dots_after_given_lines(x):
    import deepspeed

    deepspeed.init_distributed()
    ...  # your code


def dots_in_the_middle(x):
    for part in ...:
        x += part
    return x


def only_a_docstring(x):
    """Doc."""


def passes(x):
    pass


def to_do(x):
    raise NotImplementedError


def uses_dots_to_index(x):
    return x[..., 0]


def in_place(x):
    x.add_(1)


class Reducer:
    def __init__(self, module):
        self.module = module

    def finish(self): ...


class Function:
    @staticmethod
    def forward(context, x): ...  # your code


@torch.no_grad()
def decorated_dots(x): ...


@functools.lru_cache(maxsize=1)
@torch.no_grad()
def decorated_code(x):
    return x


def loops_forever():
    while True:
        pass


def only_raises(x):
    raise KeyboardInterrupt


async def awaits(x):
    await x


class WrittenReducer:
    def __init__(self, module):
        self.module = module


@pytest.mark.parametrize(
    "stub",
    [
        dots,
        dots_after_given_lines,
        dots_in_the_middle,
        only_a_docstring,
        passes,
        to_do,
        Reducer,
        Function,
        decorated_dots,
        lambda x: ...,
    ],
)
def test_a_stub_is_known_without_running_it(stub):
    assert is_unwritten(stub)


@pytest.mark.parametrize(
    "answer",
    [
        uses_dots_to_index,
        in_place,
        WrittenReducer,
        len,
        lambda x: 3,
        decorated_code,
        loops_forever,
        only_raises,
        awaits,
    ],
)
def test_code_is_no_stub(answer):
    assert not is_unwritten(answer)


def returns_in_one_case(x):
    return x if x else None


def returns_after_a_loop(x):
    for part in x:
        if part:
            return part


def has_a_function_that_returns(x):
    def inner():
        return x

    inner()


def loops(x):
    for part in x:
        part.add_(1)


def test_what_returns_on_one_of_its_paths_has_forgotten_nothing():
    assert (
        not forgot_return(returns_in_one_case)
        and not forgot_return(returns_after_a_loop)
        and not forgot_return(lambda x: x or None)
    )
    assert forgot_return(loops) and forgot_return(has_a_function_that_returns)
    for answer in (loops_forever, only_raises, awaits):
        assert not forgot_return(answer)


def test_a_forgotten_return_is_known_where_the_course_returns_something():
    assert forgot_return(in_place) and forgot_return(in_place, uses_dots_to_index)
    assert not forgot_return(in_place, in_place)
    assert not forgot_return(uses_dots_to_index, uses_dots_to_index)
    assert not forgot_return(to_do) and not forgot_return(Reducer) and not forgot_return(len)


@pytest.mark.parametrize(
    "answer, wanted, words",
    [
        (lambda a, b: 1, ["a", "b"], ""),
        (lambda a, b, c=1: 1, ["a", "b"], ""),
        (lambda *args, **more: 1, ["a", "b"], ""),
        (lambda b, a: 1, ["a", "b"], "your function takes (b, a), the check calls it with (a, b)"),
        (lambda a: 1, ["a", "b"], "your function takes (a), the check calls it with (a, b)"),
        (lambda *args: 1, ["a", "b"], "your function takes (*args), the check calls it with (a, b)"),
        (WrittenReducer, ["model"], "your function takes (module), the check calls it with (model)"),
    ],
)
def test_a_changed_signature_is_said_in_words(answer, wanted, words):
    assert misfit(answer, wanted, by_position=True) == words


def of_a_notebook(source, is_known=True, **variables):
    """A function of a cell, whose text a notebook keeps."""
    namespace, file = {"__name__": "__main__", **variables}, f"<a cell: {source}>"
    if is_known:
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)
    return namespace["answer"]


def test_where_there_is_no_source_nothing_is_said():
    answer = of_a_notebook("def answer(x):\n    y = rank\n    ...", is_known=False, rank=3)
    assert not is_unwritten(answer) and not forgot_return(answer) and picked_up(answer) == []
    assert result_expected(answer) == [] and misfit(answer, ["x"]) == ""


def test_a_loop_variable_of_the_notebook_that_a_function_uses_is_named():
    assert picked_up(of_a_notebook("def answer(x):\n    return x + rank", rank=3)) == ["rank"]
    assert picked_up(
        of_a_notebook("def answer(x):\n    def inner():\n        return x + rank\n    return inner()", rank=3)
    ) == ["rank"]


def test_functions_constants_and_names_of_its_own_are_no_reason_for_a_warning():
    assert (
        picked_up(of_a_notebook("def answer(x):\n    return helper(x) + WIDTH + len(x)", helper=len, WIDTH=3))
        == []
    )
    assert picked_up(of_a_notebook("def answer(rank):\n    return rank", rank=3)) == []
    answer = of_a_notebook("def answer(x):\n    return x + step", step=3)
    assert picked_up(answer, solution=answer) == []


def uses_what_a_collective_returns(t):
    import deepspeed.comm as comm

    t = comm.all_reduce(t)
    return t / comm.get_world_size()


def waits_for_a_collective(t):
    import deepspeed.comm as comm

    work = comm.all_reduce(t, async_op=True)
    work.wait()
    comm.broadcast(t, 0)
    return t


def test_a_result_that_no_collective_returns_is_seen():
    assert result_expected(uses_what_a_collective_returns) == ["all_reduce"]
    assert result_expected(waits_for_a_collective) == [] == result_expected(len)
