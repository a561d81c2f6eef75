"""Answers of lesson 01: what attention, a feed-forward layer, a block and a whole Llama cost, each against a
real one, how long a training takes, what checkpointing leaves, and a model that betrays bugs; and the
mistakes that people make there.

Its instrument, and what its companion asks for, are in `transformer_layers_more`.
"""

from helpers.course.exercises.against_layers import against
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.miscounts import OddModel, miscounts
from helpers.course.exercises.solutions import transformer_layers as solutions
from helpers.course.exercises.transformer_layers_more import (  # noqa: F401  lessons take them from here
    crossover_length,
    kept_bytes,
    llama_block,
)
from helpers.course.exercises.trials import formula

ATTENTION = """
correct: the scores grow with the square of s, and nothing that is kept does

a head has d channels, and a heads need not be as wide as the stream: q has h times a d weights
    2 * h * a * d + -> 2 * h * h +
keys and values have k heads, and a head has d channels, which need not be h / a
    2 * h * a * d + 2 * h * k * d -> 4 * h * h
keys and values have k heads, not a
    2 * h * k * d -> 2 * h * a * d
there are four matrices: q, k, v, and the output's
    2 * h * a * d + -> h * a * d +
keys and values have a matrix each
    + 2 * h * k * d -> + h * k * d
the matrices are right: two products with the scores are missing, q times k and weights times v
    + scores ->
that is half of the scores' FLOPs: there are two products, q times k and weights times v, a multiply-add is
two, and masked scores count
    scores = 2 * ( -> scores = (
every query head has scores of its own, whoever shares its keys
    s * s * a * d) -> s * s * k * d)
a multiply-add is two FLOPs
    2 * b * s * parameters -> b * s * parameters
    scores = 2 * ( -> scores = (
a number in bf16 takes two bytes
    2 * b * s * h + heads + 4 -> b * s * h + heads // 2 + 4
the input is missing: q, k and v are computed from it, and so are the gradients of their weights
    2 * b * s * h + heads -> heads
one fp32 number for each head and token is missing, the fused kernel's
    + 4 * a * b * s ->
that number is fp32, 4 bytes
    4 * a * b * s -> 2 * a * b * s
the fused kernel keeps no scores
    4 * a * b * s -> 2 * a * b * s * s
the result is kept too: the output's weights need it
    (2 * a * d + -> (a * d +
the fused kernel gets k and v with their k heads, and keeps no copies
    2 * k * d)  # q, result -> 2 * a * d)  # q, result
"""
attention = against(solutions.attention_solution, ATTENTION)

FEED_FORWARD = """
correct: a third matrix, and two more wide tensors to keep

it is gated: gate, up and down are three matrices
    3 * h * f -> 2 * h * f
there are no biases
    3 * h * f -> 3 * h * f + 2 * f + h
a multiply-add is two FLOPs
    2 * b * s * parameters -> b * s * parameters
a number in bf16 takes two bytes
    2 * b * s * (h + 4 -> b * s * (h + 4
the input is kept too, for the weights of gate and up
    (h + 4 * f) -> 4 * f
SiLU's result is kept as well as its input: the product needs the one, SiLU's derivative the other
    4 * f) -> 3 * f)
a product keeps both of its factors: SiLU's result and up
    4 * f) -> 2 * f)
"""
feed_forward = against(solutions.feed_forward_solution, FEED_FORWARD)

BLOCK = """
correct: the residual connections cost nothing, and the two norms a quarter of what is kept

there are two norms
    [norm, norm] -> [norm]
the norms are missing
    parts += [norm, norm] -> pass
RMSNorm has a gain for each channel and no shift
    "parameters": h -> "parameters": 2 * h
this norm keeps more than its input: look at the figure of the first rung
    6 * b * s * h -> 2 * b * s * h
what the norm has normalized is kept in bf16 beside the fp32 input
    6 * b * s * h -> 4 * b * s * h
the norm's result counts in the layer that reads it
    6 * b * s * h -> 8 * b * s * h
one fp32 number for each token is missing, 1 over the root mean square
    + 4 * b * s ->
"""
block = against(solutions.block_solution, BLOCK, rungs=(attention, feed_forward))

LLAMA = """
correct: that is a whole model, from functions of your own

there are L blocks
    L * one["parameters"] -> one["parameters"]
    L * one["FLOPs"] -> one["FLOPs"]
    L * one["kept"] -> one["kept"]
the last norm has h gains
    + h + V * h -> + V * h
an untied model has two matrices of V times h: the table of the embedding, and the head's
    (1 if tied else 2) -> 1
a tied head is the table itself: count it once
    (1 if tied else 2) -> 2
the head's matrix costs 2 FLOPs per token and weight, also where it is tied; looking up a row is no product
    + 2 * b * s * h * V ->
a multiply-add is two FLOPs
    + 2 * b * s * h * V -> + b * s * h * V
a row of the embedding is looked up, not multiplied
    + 2 * b * s * h * V -> + 4 * b * s * h * V
the last norm keeps as much as any other
    + norm + inputs -> + inputs
the head's matrix keeps its input
    norm + inputs + loss -> norm + loss
log-probabilities are fp32, 4 bytes
    4 * b * s * V -> 2 * b * s * V
the labels are kept too, 8 bytes for each token
    8 * b * s + 4 -> 4
the loss keeps the number of tokens that it divides by, 4 bytes
    8 * b * s + 4 -> 8 * b * s
all blocks share the cosines and sines
    2 * 2 * s * d -> 2 * 2 * s * d * L
cosines and sines are missing, 2 s d bytes each
    + loss + rotations -> + loss
there are cosines and sines
    2 * 2 * s * d -> 2 * s * d
cosines and sines are those of one sequence
    2 * 2 * s * d -> 2 * 2 * b * s * d
"""
llama = against(solutions.llama_solution, LLAMA, rungs=(attention, feed_forward, block))

DAYS = """
correct: the budget and the MFU decide, and eight GPUs are few

the backward pass does two products for each of the forward pass: a step takes three times as much
    3 * forward -> forward
`forward` has two of a parameter's six FLOPs already: a step takes three times the forward pass
    3 * forward -> 6 * forward
the backward pass alone takes twice the forward pass, and both are to be paid for
    3 * forward -> 2 * forward
a day has 86,400 seconds
    / 86_400 ->
GPUs share the work
    gpus * peak -> peak
they reach a part of their peak: divide by the MFU
    gpus * peak * mfu -> gpus * peak
the peak is divided by the MFU, not multiplied
    peak * mfu -> peak / mfu
"""
days = formula(solutions.days_solution, [(2e11, 1.5e10, 8, 989e12, 0.4), (1e12, 2e9, 64, 312e12, 0.5)], DAYS)

CHECKPOINTED = """
correct: of all that a block keeps, its input is left

what lies outside of the blocks is kept as before: the last norm, the head, its loss, cosines and sines
    return outside + -> return
that keeps everything, and the inputs once more: leave out what blocks keep inside
    k, d, f, 0, V -> k, d, f, L, V
there are L blocks, and each keeps its own input
    L * 2 * b -> 2 * b
a number in bf16 takes two bytes
    L * 2 * b -> L * b
the positions are missing, 8 bytes each
    + 8 * s ->
all blocks share the positions
    8 * s -> 8 * s * L
all sequences share the positions
    8 * s -> 8 * b * s
"""
checkpointed = formula(
    solutions.checkpointed_solution,
    [(2, 64, 64, 4, 2, 16, 160, 4, 256, False), (3, 40, 96, 6, 2, 8, 104, 5, 181, True)],
    CHECKPOINTED,
    rungs=(llama,),
)

odd_model = OddModel(
    solution=solutions.odd_model_solution,
    formula=solutions.llama_solution,
    bugs=miscounts(solutions.llama_solution),
    praise="no test beside it is needed",
)
