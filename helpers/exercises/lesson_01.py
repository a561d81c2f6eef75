"""Answers of lesson 01, and the mistakes that people make there."""

from helpers import theory
from helpers.exercises.engine import Exercise
from helpers.exercises.guesses import guess as guess
from helpers.models import GPTSize

untied_parameters = Exercise(
    reference=lambda vocabulary, context, width, layers: theory.gpt_parameters(GPTSize(vocabulary, context, width, layers, 1)) + vocabulary * width,
    cases=(
        {"vocabulary": 256, "context": 64, "width": 64, "layers": 4},
        {"vocabulary": 50257, "context": 1024, "width": 768, "layers": 12},
    ),
    mistakes={
        "that is the tied model; an untied head has a matrix of its own": lambda vocabulary, context, width, layers: theory.gpt_parameters(
            GPTSize(vocabulary, context, width, layers, 1)
        ),
        "the head scores tokens, not positions": lambda vocabulary, context, width, layers: (
            theory.gpt_parameters(GPTSize(vocabulary, context, width, layers, 1)) + (vocabulary + context) * width
        ),
        "this head has no bias": lambda vocabulary, context, width, layers: (
            theory.gpt_parameters(GPTSize(vocabulary, context, width, layers, 1)) + vocabulary * width + vocabulary
        ),
        "the norm before the head has 2 h parameters": lambda vocabulary, context, width, layers: (
            theory.gpt_parameters(GPTSize(vocabulary, context, width, layers, 1)) + vocabulary * width - 2 * width
        ),
    },
    praise="the head no longer borrows the embedding's matrix, so that matrix is there twice",
)
gated_feed_forward_parameters = Exercise(
    reference=lambda width, hidden: 3 * width * hidden,
    cases=({"width": 64, "hidden": 176}, {"width": 4096, "hidden": 11008}),
    mistakes={
        "count the gate's matrix too": lambda width, hidden: 2 * width * hidden,
        "these maps have no biases": lambda width, hidden: 3 * width * hidden + 2 * hidden + width,
    },
    praise="the gate is a map of its own beside up and down, and as wide as they are",
)
crossover_length = Exercise(
    reference=lambda width, heads: 9 * width / heads,
    cases=({"width": 64, "heads": 4}, {"width": 768, "heads": 12}, {"width": 12288, "heads": 96}),
    mistakes={
        "every head keeps its own T x T matrix": lambda width, heads: 9 * width,
        "the feed-forward keeps its input as well as the two wide tensors": lambda width, heads: 8 * width / heads,
        "the GELU's output is kept as well as its input": lambda width, heads: 5 * width / heads,
    },
    praise="the attention matrices grow with the square of the length and all the rest with the length, so they meet once",
)
