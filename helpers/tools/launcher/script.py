"""A function of a notebook as the text of a script: its source, and the source or value of everything that it
uses."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import linecache
import pprint
import symtable
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType

from ..place import OURS


def source_of(thing: FunctionType | type) -> str:
    """The text that defines a function or a class; TypeError where none could stand in a script."""
    name = getattr(thing, "__name__", repr(thing))
    if name == "<lambda>":
        raise TypeError("a lambda cannot be written into a script: give it a name with `def`")
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        if isinstance(thing, type) and (text := class_in_its_cell(thing)):
            return text
        raise TypeError(
            f"the source of {name!r} is not known here: define it in a cell or in a module"
        ) from None


def class_in_its_cell(thing: type) -> str | None:
    """The text of a class of a notebook, which Python does not find: from the cell of one of its methods;
    None where it has none."""
    for method in filter(inspect.isfunction, vars(thing).values()):
        lines, place = linecache.getlines(method.__code__.co_filename), method.__code__.co_firstlineno
        for node in ast.walk(ast.parse("".join(lines))):
            if not isinstance(node, ast.ClassDef) or node.name != thing.__name__:
                continue
            if node.lineno <= place <= node.end_lineno:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))
    return None


def names_used(text: str) -> list[str]:
    """Names that a text takes from outside of itself, functions and classes within it included, in the order
    in which they appear."""
    tables, used = [symtable.symtable(text, "script", "exec")], []
    defined = {symbol.get_name() for symbol in tables[0].get_symbols() if symbol.is_assigned()}
    while tables:
        table = tables.pop(0)
        tables = table.get_children() + tables
        symbols = (symbol for symbol in table.get_symbols() if symbol.is_global())
        used += [symbol.get_name() for symbol in symbols if symbol.is_referenced()]
    outside = (name for name in dict.fromkeys(used) if name not in defined and not name.startswith("__"))
    return [name for name in outside if not hasattr(builtins, name)]


def surroundings(thing: FunctionType | type) -> dict[str, object]:
    """What names mean where a function or a class was defined."""
    if isinstance(thing, FunctionType):
        cells = (cell.cell_contents for cell in thing.__closure__ or ())
        return {**thing.__globals__, **dict(zip(thing.__code__.co_freevars, cells))}
    known = vars(inspect.getmodule(thing) or builtins).copy()
    for method in filter(inspect.isfunction, vars(thing).values()):
        known |= surroundings(method)
    return known


def is_importable(thing: object) -> bool:
    """Whether a module that is not the notebook offers it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return False
    try:
        return getattr(importlib.import_module(module), name, None) is thing
    except ImportError:
        return False


class Script:
    """The lines of a script that import, and its parts, definitions and values, each before what needs it."""

    def __init__(self, function: FunctionType) -> None:
        self.imports, self.parts, self.known = [], [], {}
        self.define(function.__name__, function)

    def add(self, name: str, value: object) -> None:
        """Something that is used under a name."""
        if name in self.known:
            if self.known[name] is not value:
                raise ValueError(f"two things are called {name!r} in what the function uses: rename one")
            return
        if isinstance(value, (FunctionType, type)) and not is_importable(value):
            self.define(name, value)
            return
        self.known[name] = value
        if isinstance(value, ModuleType):
            package, _, last = value.__name__.rpartition(".")
            inner = package and last == name
            line = f"from {package} import {last}" if inner else f"import {value.__name__}"
            self.imports.append(line if last == name else f"{line} as {name}")
        elif is_importable(value):
            line = f"from {value.__module__} import {value.__qualname__}"
            self.imports.append(line if value.__qualname__ == name else f"{line} as {name}")
        else:
            self.parts.append(f"{name} = {self.literal(name, value)}")

    def define(self, name: str, thing: FunctionType | type) -> None:
        """The source of a function or a class, after everything that it uses."""
        self.known[name] = thing
        text = source_of(thing)
        known = surroundings(thing)
        for used in names_used(text):
            if used in known:
                self.add(used, known[used])
            elif used != thing.__name__:
                raise NameError(
                    f"{thing.__name__} uses {used!r}, which is not defined: run the cell that "
                    "defines it first"
                )
        self.parts.append(
            text.strip() + ("" if thing.__name__ == name else f"\n\n\n{name} = {thing.__name__}")
        )

    def literal(self, name: str, value: object) -> str:
        """A value as Python writes it: plain data, or a dataclass of it."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {
                field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init
            }
            self.add(type(value).__name__, type(value))
            values = ", ".join(f"{key}={self.literal(name, part)}" for key, part in fields.items())
            return f"{type(value).__name__}({values})"
        text = pprint.pformat(value, width=110, sort_dicts=False)
        try:
            if ast.literal_eval(text) == value:
                return text
        except (ValueError, SyntaxError):
            pass
        raise TypeError(
            f"{name!r} is a {type(value).__name__}, which cannot be written into a script: make "
            "it inside the function"
        )


def our_modules(text: str, package: str = "") -> set[str]:
    """Modules of this package that the text of a script, or of a module in `package`, imports, wherever it
    does, but not for types alone."""
    modules = set()
    for node in at_run_time(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package or None)
            modules |= {home_of(module, alias.name) for alias in node.names if is_ours(module)}
    return set(filter(is_ours, modules))


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == OURS


def home_of(module: str, name: str) -> str:
    """The module to copy for `from module import name`: the one that holds what a package lends lazily."""
    inner = f"{module}.{name}"
    homes = getattr(importlib.import_module(module), "HOMES", {})
    if name in homes:
        return homes[name]
    return inner if is_module(inner) else module


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, without what is there for who checks types (`if TYPE_CHECKING:`)."""
    yield node
    only_types = (
        isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    for below in node.orelse if only_types else ast.iter_child_nodes(node):
        yield from at_run_time(below)


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def files_to_copy(text: str, package: str = "") -> dict[str, str]:
    """{place in the folder: text} of this package's modules that the text of a script, or of a module in
    `package`, imports, those that they import, and
    their packages."""
    files, left = {}, our_modules(text, package)
    while left:
        name = left.pop()
        spec = importlib.util.find_spec(name)
        ending = ".py" if spec.submodule_search_locations is None else "/__init__.py"
        place = name.replace(".", "/") + ending
        if place not in files:
            files[place] = spec.loader.get_source(name)
            left |= our_modules(files[place], spec.parent)
            left |= {name.rpartition(".")[0]} - {""}
    return files
