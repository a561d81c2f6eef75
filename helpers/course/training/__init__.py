"""A small training that is counted: three steps of the course's GPT.

`comparable` is what all trainings share, `one_process` the right answer, `measured` the training by DeepSpeed
or by torch alone, and `looking` tests of any.  Lessons run them in ranks, beside the technique that a learner
has written.
"""

# ruff: noqa: F401  these names are what the package offers

from helpers.course.training.comparable import (
    LENGTH,
    SEQUENCES,
    STEPS,
    gathered,
    gradients_of,
    join,
    learned,
    own_rows,
    same_answer,
    weights_of,
)
from helpers.course.training.looking import tests_of
from helpers.course.training.measured import MOMENTS, one_step, train, train_each, train_plain
from helpers.course.training.one_process import backward, counted, in_one_process
