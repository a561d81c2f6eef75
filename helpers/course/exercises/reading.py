"""What can be read from a learner's function without running it: is it written, does it return, does it take
what the check hands in, is it the newest?

All is read from the source, which a notebook keeps for its cells.  Where there is none, nothing is said.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FunctionType

    Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

# Collectives that write into a tensor and return nothing.
IN_PLACE = {"all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor"}
IN_PLACE |= {"all_to_all_single"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def functions_of(answer: object) -> list[FunctionType]:
    """The plain functions of an answer: itself, without its decorators, or the methods of a class."""
    members = list(vars(answer).values()) if inspect.isclass(answer) else [answer]
    unwrapped = [inspect.unwrap(getattr(member, "__func__", member)) for member in members]
    return [member for member in unwrapped if inspect.isfunction(member)]


@functools.lru_cache(maxsize=16)
def functions_in(source: str) -> list[Definition]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTIONS)]


def definitions_of(answer: object) -> list[Definition]:
    """The syntax trees of an answer's functions, without those whose source is unknown, or whose line holds
    several lambdas."""
    definitions = []
    for function in functions_of(answer):
        code = function.__code__
        try:
            nodes = functions_in("".join(inspect.findsource(function)[0]))
        except (OSError, TypeError, IndexError, SyntaxError):
            continue
        named = [node for node in nodes if getattr(node, "name", "<lambda>") == code.co_name]
        here = [
            node
            for node in named
            if (getattr(node, "decorator_list", []) or [node])[0].lineno == code.co_firstlineno
        ]
        definitions += here if len(here) == 1 else []
    return definitions


def own_parts(definition: Definition) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes within it."""
    parts = list(definition.body) if isinstance(definition.body, list) else [definition.body]
    while parts:
        part = parts.pop()
        yield part
        if not isinstance(part, (*FUNCTIONS, ast.ClassDef)):
            parts += ast.iter_child_nodes(part)


def is_unwritten(answer: object) -> bool:
    """Whether dots or a `NotImplementedError` still stand for code (`x[..., 0]` is code), or nothing at all
    is done."""
    definitions = definitions_of(answer)
    return any(map(has_dots, definitions)) or bool(definitions) and all(map(does_nothing, definitions))


def has_dots(tree: ast.AST) -> bool:
    parts = list(ast.walk(tree))
    indices = [part.slice for part in parts if isinstance(part, ast.Subscript)]
    defaults = [part for part in parts if isinstance(part, ast.arguments)]
    code = {id(part) for place in indices + defaults for part in ast.walk(place)}
    return any(
        (isinstance(part, ast.Constant) and part.value is ... and id(part) not in code)
        or (isinstance(part, ast.Raise) and "NotImplementedError" in ast.dump(part))
        for part in parts
    )


def is_nothing(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, ...))


def does_nothing(definition: Definition) -> bool:
    """Whether a body holds a docstring, `pass` or `return` alone."""
    if isinstance(definition, ast.Lambda):
        return is_nothing(definition.body)
    return all(
        isinstance(part, ast.Pass)
        or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        or (isinstance(part, ast.Return) and is_nothing(part.value))
        for part in definition.body
    )


def returns_nothing(answer: object) -> bool:
    """Whether a function comes to its end, and returns nothing on every path."""
    (definition,) = definitions_of(answer) or [None]
    if not isinstance(definition, ast.FunctionDef):
        return False
    last = definition.body[-1]
    has_no_end = isinstance(last, ast.Raise) or ast.unparse(last).startswith(("while True:", "while 1:"))
    values = [part for part in own_parts(definition) if isinstance(part, (ast.Yield, ast.YieldFrom))]
    values += [part.value for part in own_parts(definition) if isinstance(part, ast.Return)]
    return not has_no_end and all(map(is_nothing, values))


def forgot_return(answer: object, solution: object = None) -> bool:
    """Whether a function returns nothing on every path, where the course's returns something."""
    if not inspect.isfunction(answer) or not returns_nothing(answer):
        return False
    return not inspect.isfunction(solution) or not returns_nothing(solution)


def result_expected(answer: object) -> list[str]:
    """The collectives, by their names, whose result a function uses although it is written into a tensor: `t
    = comm.all_reduce(t)`."""
    parts = [part for definition in definitions_of(answer) for part in ast.walk(definition)]
    used = [part.value for part in parts if isinstance(part, (ast.Assign, ast.Attribute, ast.Return))]
    used += [side for part in parts if isinstance(part, ast.BinOp) for side in (part.left, part.right)]
    calls = [part for part in used if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)]
    blocking = [call for call in calls if all(word.arg != "async_op" for word in call.keywords)]
    return sorted({call.func.attr for call in blocking} & IN_PLACE)


def names_of(function: Callable) -> list[str] | None:
    """The names of what a function takes, in order; None where that is not known, or they cannot all be given
    by position and by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    by_either = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    return [parameter.name for parameter in parameters] if by_either else None


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
    bare = [part.replace(annotation=part.empty, default=part.empty) for part in signature.parameters.values()]
    takes = ", ".join(map(str, bare))
    return "" if fits else f"your function takes ({takes}), the check calls it with ({', '.join(wanted)})"


def names_read(answer: object) -> set[str]:
    """Names that an answer's functions, and the functions within them, look up outside."""
    parts = [part for definition in definitions_of(answer) for part in ast.walk(definition)]
    names = [part for part in parts if isinstance(part, ast.Name)]
    bound = {part.id for part in names if not isinstance(part.ctx, ast.Load)}
    bound |= {part.arg for part in parts if isinstance(part, ast.arg)}
    bound |= {part.name for part in parts if isinstance(part, (*FUNCTIONS[:2], ast.ClassDef))}
    bound |= {part.asname or part.name.split(".")[0] for part in parts if isinstance(part, ast.alias)}
    return {part.id for part in names} - bound - set(vars(builtins))


def picked_up(answer: object, solution: object = None) -> list[str]:
    """Lower-case names of plain numbers, lists and tensors of the notebook that a function uses without
    having been given them."""
    functions = [function for function in functions_of(answer) if function.__module__ == "__main__"]
    values = functions[0].__globals__ if functions else {}
    plain = (bool, int, float, list, tuple)
    if torch := sys.modules.get("torch"):
        plain += (torch.Tensor,)
    names = names_read(answer) - names_read(solution)
    return sorted(name for name in names if not name.isupper() and isinstance(values.get(name), plain))


def newer_definition(answer: object) -> str:
    """Words on a cell that should have defined the answer anew and failed, so that the answer is still the
    one from before; else "".

    A notebook keeps the text of every cell that was run, those that failed too.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    name, functions = getattr(answer, "__name__", ""), functions_of(answer)
    if shell is None or not functions or answer.__module__ != "__main__":
        return ""
    current = shell.user_ns.get(name)
    if current is not answer and getattr(current, "__name__", None) == name:
        return ""  # the name stands for a newer function: the old one is checked on purpose
    source = "".join(linecache.getlines(functions[0].__code__.co_filename)).rstrip("\n")
    for cell in reversed(shell.user_ns.get("In", [])):
        cell = cell.rstrip("\n")
        if not source or cell == source:
            return ""
        try:
            names = {getattr(node, "name", None) for node in ast.parse(cell).body}
            wrong = "raised an error before it came to the definition"
        except SyntaxError as error:
            names = set(re.findall(r"^\s*(?:def|class)\s+(\w+)", cell, flags=re.M))
            wrong = f"has a {type(error).__name__} in line {error.lineno}"
        if name in names:
            return (
                f"the newest cell that defines `{name}` {wrong}, so this is still the `{name}` from "
                "before: mend that cell and run it again"
            )
    return ""
