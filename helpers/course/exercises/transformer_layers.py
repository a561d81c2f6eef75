"""Answers of lesson 01: what attention, a feed-forward layer, a block and a whole Llama cost, each against a
real one, how long a training takes, what checkpointing leaves, and a model that betrays bugs; and the
mistakes that people make there.

Its instrument, and what its companion asks for, are in `transformer_layers_more`.
"""

from helpers.course.exercises.against_layers import AgainstLayers
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.miscounts import OddModel, miscounts
from helpers.course.exercises.stubs import Stubs
from helpers.course.exercises.transformer_layers_more import (  # noqa: F401  lessons take them from here
    crossover_length,
    kept_bytes,
    llama_block,
)

stubs = Stubs("transformer_layers")

attention = stubs.check(AgainstLayers, "attention")

feed_forward = stubs.check(AgainstLayers, "feed_forward")

block = stubs.check(AgainstLayers, "block", rungs=(attention, feed_forward))

llama = stubs.check(AgainstLayers, "llama", rungs=(attention, feed_forward, block))

days = stubs.formula("days", [(2e11, 1.5e10, 8, 989e12, 0.4), (1e12, 2e9, 64, 312e12, 0.5)])

checkpointed = stubs.formula(
    "checkpointed",
    [(2, 64, 64, 4, 2, 16, 160, 4, 256, False), (3, 40, 96, 6, 2, 8, 104, 5, 181, True)],
    rungs=(llama,),
)

odd_model = stubs.check(
    OddModel,
    "odd_model",
    formula=stubs.solutions.llama_solution,
    bugs=miscounts(stubs.solutions.llama_solution),
)
