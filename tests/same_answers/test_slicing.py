"""Of a notebook's cells those run that a check needs, and no others."""

from tests.same_answers.slicing import needed

CELLS = [
    "import math\nrows, other = [], 3",  # 0
    "factor = 2",  # 1
    "def scaled(x):\n    return factor * math.sqrt(x)",  # 2: reads 0 and 1 when it is called
    "unused = scaled(3)",  # 3
    "rows.append(4)",  # 4: changes what 0 has bound
    "print(rows)",  # 5: would change nothing
    "for other in rows:\n    total = other",  # 6: binds what it reads
    "[other for other in rows]",  # 7: binds nothing
    "result = [scaled(row) for row in rows]",  # 8
    "rows = []",  # 9: too late
]


def test_a_cell_needs_what_binds_or_changes_what_it_reads():
    assert needed(CELLS, {8}) == [0, 1, 2, 4, 8]


def test_a_name_that_is_bound_again_needs_no_earlier_cell():
    assert needed(["a = 1", "a += 1", "a = 3", "b = a"], {3}) == [2, 3]
    assert needed(["a = 1", "a += 1", "b = a"], {2}) == [0, 1, 2]


def test_a_function_that_its_own_cell_calls_needs_what_its_body_reads():
    assert needed(["a = 1", "b = 2", "def f():\n    return [a for _ in '12']\nf()"], {2}) == [0, 2]


def test_several_cells_need_what_each_needs():
    assert needed(CELLS, {3, 6}) == [0, 1, 2, 3, 4, 6]
