"""What can be read from a learner's function without running it: is it written, does it return, does it take
what it is given, is it the newest?"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import linecache
import re
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FunctionType

IN_PLACE = {
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
}  # return nothing
STARS = {inspect.Parameter.VAR_POSITIONAL: 1, inspect.Parameter.VAR_KEYWORD: 2}


def functions_of(answer: object) -> list[FunctionType]:
    """The plain functions of an answer: itself, or the methods of a class, static ones too."""
    if inspect.isclass(answer):
        members = [
            member.__func__ if isinstance(member, staticmethod) else member
            for member in vars(answer).values()
        ]
        return [member for member in members if inspect.isfunction(member)]
    return [answer] if inspect.isfunction(answer) else []


def tree_of(function: FunctionType) -> ast.Module | None:
    """The syntax tree of a function's definition, or None where its source is not known (or is a
    lambda's)."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None


def is_unwritten(answer: object) -> bool:
    """Whether dots or a `NotImplementedError` still stand for code (`x[..., 0]` is code), or nothing at all
    is done."""
    functions = functions_of(answer)
    trees = [tree for tree in map(tree_of, functions) if tree is not None]
    return (
        any(has_dots(tree) for tree in trees)
        or bool(functions)
        and all(does_nothing(function.__code__) for function in functions)
    )


def has_dots(tree: ast.AST) -> bool:
    parts = list(ast.walk(tree))
    places = [
        node.slice if isinstance(node, ast.Subscript) else node
        for node in parts
        if isinstance(node, (ast.Subscript, ast.arguments))
    ]
    code = {id(part) for place in places for part in ast.walk(place)}
    return any(
        (isinstance(node, ast.Constant) and node.value is ... and id(node) not in code)
        or (isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node))
        for node in parts
    )


def instructions(code: CodeType) -> list[dis.Instruction]:
    return [
        one
        for one in dis.get_instructions(code)
        if one.opname not in ("RESUME", "NOP", "CACHE", "COPY_FREE_VARS", "MAKE_CELL")
    ]


def does_nothing(code: CodeType) -> bool:
    return len(instructions(code)) <= 2 and returned(code) <= {"None", "Ellipsis"}


def returned(code: CodeType) -> set[str]:
    """What the `return` lines of a function give: the names of constants, and "a value"."""
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return {"a value"}
    found, before = set(), None
    for one in instructions(code):
        constant = one if one.opname == "RETURN_CONST" else before
        if one.opname in ("RETURN_CONST", "RETURN_VALUE"):
            one_way = (
                one.opname == "RETURN_CONST" or not one.is_jump_target
            )  # to `return x if c else None` there are two
            known = (
                one_way
                and constant is not None
                and constant.opname in ("RETURN_CONST", "LOAD_CONST")
                and constant.argval in (None, ...)
            )
            found.add(str(constant.argval) if known else "a value")
        before = one
    return found


def forgot_return(answer: object, solution: object = None) -> bool:
    """Whether a function returns nothing on every path, where the course's returns something."""
    if not inspect.isfunction(answer) or returned(answer.__code__) != {"None"}:
        return False
    return not inspect.isfunction(solution) or returned(solution.__code__) != {"None"}


def result_expected(answer: object) -> list[str]:
    """The collectives, by their names, whose result a function uses although it is written into a tensor: `t
    = comm.all_reduce(t)`."""
    trees = [tree for tree in map(tree_of, functions_of(answer)) if tree is not None]
    parts = [part for tree in trees for part in ast.walk(tree)]
    used = [part.value for part in parts if isinstance(part, (ast.Assign, ast.Attribute, ast.Return))]
    used += [side for part in parts if isinstance(part, ast.BinOp) for side in (part.left, part.right)]
    calls = [part for part in used if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)]
    return sorted(
        {
            call.func.attr
            for call in calls
            if call.func.attr in IN_PLACE and not any(word.arg == "async_op" for word in call.keywords)
        }
    )


def names_of(function: Callable) -> list[str] | None:
    """The names of what a function takes, in order; None where that is not known, or they cannot all be given
    by position and by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return (
        [one.name for one in parameters]
        if all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)
        else None
    )


def misfit(answer: Callable, wanted: Sequence[str], by_position: bool = False) -> str:
    """Words where a function cannot be called with the parameters `wanted` by name, or `by_position` too;
    else ""."""
    try:
        signature = inspect.signature(answer)
    except (TypeError, ValueError):
        return ""
    try:
        bound = signature.bind(**dict.fromkeys(wanted))
        if by_position:
            signature.bind(*wanted)
        fits = not by_position or bool(bound.kwargs) or list(bound.arguments) == list(wanted)
    except TypeError:
        fits = False
    takes = ", ".join(f"{'*' * STARS.get(one.kind, 0)}{one.name}" for one in signature.parameters.values())
    return "" if fits else f"your function takes ({takes}), the check calls it with ({', '.join(wanted)})"


def globals_read(code: CodeType) -> set[str]:
    """Names that a function's code, and the functions within it, look up outside."""
    found = {one.argval for one in instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(globals_read(part) for part in code.co_consts if inspect.iscode(part)))


def picked_up(answer: object, solution: object = None) -> list[str]:
    """Lower-case names of plain numbers, lists and tensors of the notebook that a function uses without
    having been given them."""
    allowed = {name for function in functions_of(solution) for name in globals_read(function.__code__)}
    found = set()
    for function in functions_of(answer):
        if function.__module__ == "__main__":
            values = function.__globals__
            names = globals_read(function.__code__) - allowed - set(vars(builtins))
            found |= {
                name for name in names if name in values and not name.isupper() and is_plain(values[name])
            }
    return sorted(found)


def is_plain(value: object) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, (bool, int, float, list, tuple)) or (
        torch is not None and isinstance(value, torch.Tensor)
    )


def newer_definition(answer: object) -> str:
    """Words on a cell that should have defined the answer anew and failed, so that the answer is still the
    one from before; else "".

    A notebook keeps the text of every cell that was run, those that failed too.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    name, functions = getattr(answer, "__name__", ""), functions_of(answer)
    if (
        shell is None
        or not functions
        or answer.__module__ != "__main__"
        or is_another(shell.user_ns.get(name), answer)
    ):
        return ""
    own = "".join(linecache.getlines(functions[0].__code__.co_filename)).rstrip("\n")
    for cell in reversed(shell.user_ns.get("In", [])):
        cell = cell.rstrip("\n")
        if not own or cell == own:
            return ""
        try:
            defined = {
                node.name
                for node in ast.parse(cell).body
                if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            }
            wrong = "raised an error before it came to the definition"
        except SyntaxError as error:
            defined = set(re.findall(r"^\s*(?:def|class)\s+(\w+)", cell, flags=re.M))
            wrong = f"has a {type(error).__name__} in line {error.lineno}"
        if name in defined:
            return (
                f"the newest cell that defines `{name}` {wrong}, so this is still the `{name}` from "
                "before: mend that cell and run it again"
            )
    return ""


def is_another(current: object, answer: object) -> bool:
    """Whether a name stands for a newer function than the one that is checked: then an old one is checked on
    purpose."""
    return current is not answer and getattr(current, "__name__", None) == getattr(answer, "__name__", "")
