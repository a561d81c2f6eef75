"""Which cells of a notebook must have run before some of its cells can.

A cell is needed where it binds, or may change, a name that a needed cell reads later; a function reads what
its body reads.  What a cell leaves in files or in modules is not seen here: a check that needs that names the
cell itself.
"""

import ast
import builtins
import symtable

from IPython.core.inputtransformer2 import TransformerManager

DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
AT_ONCE = ("lambda", "genexpr", "listcomp", "setcomp", "dictcomp")  # scopes whose bodies run where they stand


def needed(sources, targets):
    """The indexes of the cells to run, in order, so that those with the indexes `targets` can.

    Args:
        sources: texts of all code cells.
    """
    cells = [Cell(TransformerManager().transform_cell(source)) for source in sources]
    read_by = {}  # {function: names that its body reads}
    for cell in cells:
        for name, read in cell.read_by.items():
            read_by[name] = read_by.get(name, set()) | read
    lasting = set(dir(builtins)).union(*(cell.imported for cell in cells))  # a call changes none of these
    chosen, read = set(), set()
    for index in reversed(range(max(targets) + 1)):
        cell = cells[index]
        if index in targets or (cell.bound | cell.changed - lasting) & read:
            chosen.add(index)
            bodies = with_bodies(cell.read | cell.read_by.keys(), read_by)
            read = (read | bodies) - cell.bound | cell.read
    return sorted(chosen)


def with_bodies(read, read_by):
    """Names, and what the functions among them read, and so on."""
    found, new = set(), set(read)
    while new:
        found |= new
        new = set().union(*(read_by.get(name, ()) for name in new)) - found
    return found


class Cell:
    """The notebook's names in a cell.

    Attributes:
        read: those that it reads as it runs, and has not bound before.
        read_by: {function or class: those that its body reads}.
        bound: those that its statements bind, whatever happens; `imported` are among them.
        changed: those whose object it may change, by assigning to a part of it, or by a statement that is a
            call of one of its methods.
    """

    def __init__(self, source):
        self.read, self.read_by, self.bound, self.imported, self.changed = set(), {}, set(), set(), set()
        for statement in ast.parse(source).body:
            scope = symtable.symtable(ast.unparse(statement), "cell", "exec")
            own = {symbol.get_name() for symbol in scope.get_symbols()}
            read = {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_referenced()}
            for inner in scope.get_children():
                own |= globals_of(inner)
                if inner.get_name() in AT_ONCE:
                    read |= globals_of(inner)
                else:
                    self.read_by[inner.get_name()] = globals_of(inner)
            looped = names(statement.target, ast.Store) if isinstance(statement, ast.For) else set()
            self.read |= read - self.bound - looped
            self.changed |= set().union(*map(changed_by, ast.walk(statement))) & own
            self.imported |= imported(statement)
            self.bound |= bound(statement)


def globals_of(scope):
    """The notebook's names that a function, a class or what is defined in it reads."""
    found = {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
    return found.union(*map(globals_of, scope.get_children()))


def bound(statement):
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    if isinstance(statement, (ast.Assign, ast.For, ast.With)):
        return names(statement, ast.Store)
    return imported(statement)


def imported(statement):
    if not isinstance(statement, IMPORTS):
        return set()
    return {(one.asname or one.name).split(".")[0] for one in statement.names}


def changed_by(node):
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        return names(node, ast.Load)
    if isinstance(node, ast.AugAssign):
        return names(node.target, ast.Store)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return names(node.value.func, ast.Load)
    return set()


def names(node, how):
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, how)}
