"""What learners wrote in earlier lessons and call again in a later one: the course's own answers."""

from helpers.course.exercises.solutions.data_parallelism import collect_solution as collect
from helpers.course.exercises.solutions.zero_1 import clip_shard_solution as clip_shard
from helpers.course.exercises.solutions.zero_1 import own_shard_solution as own_shard
from helpers.course.exercises.solutions.zero_1 import step_and_gather_solution as step_and_gather

collect.__doc__ = (
    "Lesson 04's: hands gradients to `send` in buckets, in every backward pass; returns `flush`."
)
clip_shard.__doc__ = "Lesson 07's: clips a shard of a gradient by the norm of the whole, which it returns."
own_shard.__doc__ = "Lesson 07's: this rank's fp32 master, a parameter with memory of its own."
step_and_gather.__doc__ = "Lesson 07's: updates a shard's master, and gathers the new weights of all."
