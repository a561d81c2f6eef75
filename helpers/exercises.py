"""Checks that tell a learner what is wrong and why.

A check calls the learner's function and compares it with a reference solution.  What is wrong with the answer is said in words and raises nothing;
an error in the check itself is not caught.  `mistakes` are answers that people really give, each with what to think about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from helpers import theory
from helpers.launchers import RankError, launch
from helpers.models import GPTSize


@dataclass(frozen=True)
class Exercise:
    """A formula to write.

    Attributes:
        reference: the solution; its keyword arguments are those that the learner's function gets.
        cases: keyword arguments to try.
        mistakes: {what to think about: a wrong solution that this answers}.
        praise: what a correct answer has shown.
    """

    reference: Callable
    cases: tuple[dict, ...]
    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""

    def check(self, answer):
        """Print a verdict in words."""
        print(self.verdict(answer))

    def verdict(self, answer):
        if not callable(answer):
            return f"not yet: the check needs your function itself, not {answer!r}"
        for case in self.cases:
            said = ", ".join(f"{name}={value}" for name, value in case.items())
            try:
                got = answer(**case)
            except Exception as error:
                return f"not yet: your function raised {type(error).__name__} for {said}: {error}"
            if got is None or got is ...:
                return "not yet: your function returns nothing so far; replace the dots by your formula"
            expected = self.reference(**case)
            if _kind(got) != _kind(expected):
                return f"not yet: your function returns {got!r} for {said}, where a {_kind(expected)} is asked for"
            if not _same(got, expected):
                thought = next((words for words, wrong in self.mistakes.items() if _same(got, wrong(**case))), "")
                return f"not yet: for {said} your function gives {_show(got)} where {_show(expected)} is right" + (f"; {thought}" if thought else "")
        return f"correct for {len(self.cases)} cases" + (f": {self.praise}" if self.praise else "")


@dataclass(frozen=True)
class RankExercise:
    """A function to write that runs in ranks; it gets no arguments, and each rank returns its part of the answer.

    Attributes:
        expected: (rank, ranks) -> what that rank should return: a number or a list.
        mistakes: {what to think about: (rank, ranks) -> what a rank returns that made this mistake}.
        praise: what a correct answer has shown.
        ranks: how many to run.
    """

    expected: Callable
    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""
    ranks: int = 4

    def check(self, answer):
        """Run the function in ranks, on the CPU, and print a verdict in words."""
        try:
            print(self.verdict(launch(answer, ranks=self.ranks, device="cpu", timeout=5)))
        except RankError as error:
            print(f"not yet: {error}")

    def verdict(self, reports):
        """The verdict on what the ranks returned."""
        ranks = len(reports)
        for rank, got in enumerate(reports):
            expected = self.expected(rank, ranks)
            if got is None or got is ...:
                return f"not yet: rank {rank} returned nothing"
            if _kind(got) != _kind(expected):
                return f"not yet: rank {rank} returned {got!r}, where a plain {_kind(expected)} is asked for (a tensor has .item() and .tolist())"
            if not _same(got, expected):
                thought = next((words for words, wrong in self.mistakes.items() if _same(got, wrong(rank, ranks))), "")
                return f"not yet: rank {rank} returned {_show(got)} where {_show(expected)} is right" + (f"; {thought}" if thought else "")
        return f"correct in {ranks} ranks" + (f": {self.praise}" if self.praise else "")


def _kind(value):
    if isinstance(value, (list, tuple)):
        return "list"
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def _same(a, b):
    """Equal; numbers to nine digits, lists element by element."""
    if _kind(a) != _kind(b):
        return False
    if _kind(a) == "list":
        return len(a) == len(b) and all(_same(one, other) for one, other in zip(a, b))
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1e-300) if _kind(a) == "number" else a == b


def _show(value):
    return f"{value:,.6g}" if _kind(value) == "number" else str(value)


# ---------------------------------------------------------------------------------------------------------------- lesson 00


sum_of_ranks = Exercise(
    reference=lambda ranks: ranks * (ranks - 1) // 2,
    cases=({"ranks": 4}, {"ranks": 1}, {"ranks": 2}, {"ranks": 8}),
    mistakes={
        "ranks are counted from 0, so the last one is ranks - 1": lambda ranks: ranks * (ranks + 1) // 2,
        "that is the number of ranks, and each of them brings its own number": lambda ranks: ranks,
        "that is the last rank's number, and all of them are added": lambda ranks: ranks - 1,
    },
    praise="0 + 1 + ... + (ranks - 1)",
)
tokens_per_step = Exercise(
    reference=lambda micro_batch, length, accumulation, ranks: micro_batch * length * accumulation * ranks,
    cases=(
        {"micro_batch": 8, "length": 64, "accumulation": 1, "ranks": 2},
        {"micro_batch": 2, "length": 32, "accumulation": 4, "ranks": 4},
    ),
    mistakes={
        "how many micro-batches does a rank run before it steps?": lambda micro_batch, length, accumulation, ranks: micro_batch * length * ranks,
        "every rank reads its own sequences": lambda micro_batch, length, accumulation, ranks: micro_batch * length * accumulation,
        "a sequence holds `length` tokens": lambda micro_batch, length, accumulation, ranks: micro_batch * accumulation * ranks,
    },
    praise="a step sees every rank's micro-batches",
)


mean_of_squares = RankExercise(
    expected=lambda rank, ranks: sum((other + 1) ** 2 for other in range(ranks)) / ranks,
    mistakes={
        "that is its own value: nothing was communicated": lambda rank, ranks: (rank + 1) ** 2,
        "that is the sum; a mean is divided by the number of ranks": lambda rank, ranks: sum((other + 1) ** 2 for other in range(ranks)),
    },
    praise="all of them know the mean",
    ranks=2,
)


# ---------------------------------------------------------------------------------------------------------------- lesson 01


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
    praise="untying adds vocabulary x width",
)
gated_feed_forward_parameters = Exercise(
    reference=lambda width, hidden: 3 * width * hidden,
    cases=({"width": 64, "hidden": 176}, {"width": 4096, "hidden": 11008}),
    mistakes={
        "count the gate's matrix too": lambda width, hidden: 2 * width * hidden,
        "these maps have no biases": lambda width, hidden: 3 * width * hidden + 2 * hidden + width,
    },
    praise="three matrices: gate, up and down",
)
crossover_length = Exercise(
    reference=lambda width, heads: 9 * width / heads,
    cases=({"width": 64, "heads": 4}, {"width": 768, "heads": 12}, {"width": 12288, "heads": 96}),
    mistakes={
        "every head keeps its own T x T matrix": lambda width, heads: 9 * width,
        "the feed-forward keeps its input as well as the two wide tensors": lambda width, heads: 8 * width / heads,
        "the GELU's output is kept as well as its input": lambda width, heads: 5 * width / heads,
    },
    praise="nine widths per head: 576 tokens for GPT-2, 1,152 for GPT-3",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 02


momentum_bytes = Exercise(
    reference=lambda parameters: 12 * parameters,
    cases=({"parameters": 1}, {"parameters": 220544}),
    mistakes={
        "that is Adam: how many moments does SGD with momentum keep?": lambda parameters: 16 * parameters,
        "that is SGD without momentum": lambda parameters: 8 * parameters,
        "the momentum is kept in fp32, 4 bytes": lambda parameters: 10 * parameters,
    },
    praise="2 + 2 + 4 + 4 bytes per parameter",
)
largest_model = Exercise(
    reference=lambda memory: memory / 16,
    cases=({"memory": 24e9}, {"memory": 80e9}),
    mistakes={
        "that counts the bf16 weights alone; training holds gradients and optimizer states too": lambda memory: memory / 2,
        "that counts weights and gradients; Adam's states are missing": lambda memory: memory / 4,
        "fp32 master weights are missing": lambda memory: memory / 12,
    },
    praise="24 GB hold the states of 1.5 billion parameters, and not one activation",
)
checkpoint_saving = Exercise(
    reference=lambda batch, sequence, width, heads: theory.block_activation_bytes(batch, sequence, width, heads, 2) - 2 * batch * sequence * width,
    cases=({"batch": 2, "sequence": 64, "width": 64, "heads": 4}, {"batch": 1, "sequence": 2048, "width": 12288, "heads": 96}),
    mistakes={
        "the block's input is still kept": lambda batch, sequence, width, heads: theory.block_activation_bytes(batch, sequence, width, heads, 2),
        "that is what remains, not what is saved": lambda batch, sequence, width, heads: 2 * batch * sequence * width,
        "that is fp32; the job is bf16, 2 bytes": lambda batch, sequence, width, heads: (
            theory.block_activation_bytes(batch, sequence, width, heads, 4) - 4 * batch * sequence * width
        ),
    },
    praise="all but the block's input",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 03


naive_all_reduce_bytes = Exercise(
    reference=lambda size, ranks: (ranks - 1) * size,
    cases=({"size": 1000, "ranks": 4}, {"size": 441_088, "ranks": 8}),
    mistakes={
        "a rank sends nothing to itself": lambda size, ranks: ranks * size,
        "that is the ring; here every rank sends its whole tensor": lambda size, ranks: theory.wire_bytes("all_reduce", size, ranks),
        "that is what all ranks send together": lambda size, ranks: ranks * (ranks - 1) * size,
    },
    praise="the ring sends N / 2 times less",
)
even_size = Exercise(
    reference=lambda ranks, latency, bandwidth: ranks * latency * bandwidth,
    cases=({"ranks": 2, "latency": 1e-4, "bandwidth": 1e9}, {"ranks": 8, "latency": 1e-5, "bandwidth": 5e10}),
    mistakes={
        "that is one message; a tensor is sent in as many parts as there are ranks": lambda ranks, latency, bandwidth: latency * bandwidth,
        "both parts of the time come 2 (N - 1) times": lambda ranks, latency, bandwidth: 2 * (ranks - 1) * latency * bandwidth,
        "compare latency with bytes / bandwidth, not with bytes x bandwidth": lambda ranks, latency, bandwidth: ranks * latency / bandwidth,
    },
    praise="below it, fewer messages help; above it, only fewer bytes do",
)
left_neighbour = RankExercise(
    expected=lambda rank, ranks: 10 * ((rank - 1) % ranks + 1),
    mistakes={
        "that is its own number: nothing has arrived": lambda rank, ranks: 10 * (rank + 1),
        "that is the right neighbour's": lambda rank, ranks: 10 * ((rank + 1) % ranks + 1),
        "that is what stood in the tensor before: is the message awaited?": lambda rank, ranks: 0,
    },
    praise="all sent and received at once, and nobody waited for ever",
)
all_numbers = RankExercise(
    expected=lambda rank, ranks: [10 * (other + 1) for other in range(ranks)],
    mistakes={
        "that is one number over and over: each broadcast needs a source of its own, and a fresh tensor": lambda rank, ranks: [10] * ranks,
    },
    praise="N broadcasts, one after another; a real all-gather sends the same bytes, and all ranks at once",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 04


accumulation_steps = Exercise(
    reference=lambda train_batch, micro_batch, ranks: train_batch / (micro_batch * ranks),
    cases=({"train_batch": 64, "micro_batch": 2, "ranks": 4}, {"train_batch": 1024, "micro_batch": 1, "ranks": 64}),
    mistakes={
        "every rank runs micro-batches of its own": lambda train_batch, micro_batch, ranks: train_batch / micro_batch,
        "that is a rank's share of the batch; it is cut into micro-batches": lambda train_batch, micro_batch, ranks: train_batch / ranks,
        "the other way round": lambda train_batch, micro_batch, ranks: micro_batch * ranks / train_batch,
    },
    praise="with twice the ranks, half the accumulation keeps the same learning",
)
data_parallel_step_bytes = Exercise(
    reference=lambda parameters, ranks, element, accumulation: theory.wire_bytes("all_reduce", element * parameters, ranks),
    cases=(
        {"parameters": 220_544, "ranks": 4, "element": 2, "accumulation": 4},
        {"parameters": 1_000_000, "ranks": 2, "element": 4, "accumulation": 8},
    ),
    mistakes={
        "the gradients are averaged once per step, not once per micro-batch": lambda parameters, ranks, element, accumulation: (
            accumulation * theory.wire_bytes("all_reduce", element * parameters, ranks)
        ),
        "that is what is logged, the size of the message; a ring sends more": lambda parameters, ranks, element, accumulation: element * parameters,
        "an all-reduce is a reduce-scatter and an all-gather": lambda parameters, ranks, element, accumulation: theory.wire_bytes(
            "all_gather", element * parameters, ranks
        ),
    },
    praise="accumulation is free on the wire",
)
mean_over_sequences = RankExercise(
    expected=lambda rank, ranks: sum(10 * (other + 1) ** 2 for other in range(ranks)) / sum(other + 1 for other in range(ranks)),
    mistakes={
        "that is the mean of the means; a rank with more sequences must count more": lambda rank, ranks: 10 * (ranks + 1) / 2,
        "that is its own mean: nothing was communicated": lambda rank, ranks: 10 * (rank + 1),
        "that is a sum: divide by all sequences": lambda rank, ranks: sum(10 * (other + 1) ** 2 for other in range(ranks)),
    },
    praise="sum the losses and the counts, then divide",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 05


llama_bytes = Exercise(
    reference=lambda batch, sequence, width, layers, element, ranks: theory.tensor_parallel_wire_bytes(
        batch, sequence, width, layers, element, ranks, all_reduces=7
    ),
    cases=(
        {"batch": 4, "sequence": 32, "width": 64, "layers": 4, "element": 4, "ranks": 4},
        {"batch": 1, "sequence": 4096, "width": 4096, "layers": 32, "element": 2, "ranks": 8},
    ),
    mistakes={
        "that is Megatron-LM's four: q, k, v, gate and up each sum a gradient of their own": lambda batch, sequence, width, layers, element, ranks: (
            theory.tensor_parallel_wire_bytes(batch, sequence, width, layers, element, ranks)
        ),
        "that is the backward pass; two come forward": lambda batch, sequence, width, layers, element, ranks: theory.tensor_parallel_wire_bytes(
            batch, sequence, width, layers, element, ranks, all_reduces=5
        ),
        "that is what is logged; an all-reduce sends 2 (t - 1) / t of it": lambda batch, sequence, width, layers, element, ranks: (
            7 * layers * element * batch * sequence * width
        ),
    },
    praise="seven all-reduces per block, 1.75 times Megatron-LM's bytes",
)
activations_kept = Exercise(
    reference=lambda ranks: (4 + 12 / ranks) / 16,
    cases=({"ranks": 2}, {"ranks": 4}, {"ranks": 8}),
    mistakes={
        "four of the sixteen are whole on every rank": lambda ranks: 1 / ranks,
        "that is the number of ebsh; divide by one process's sixteen": lambda ranks: 4 + 12 / ranks,
        "that is how many times fewer; asked is the part that is kept": lambda ranks: 16 / (4 + 12 / ranks),
    },
    praise="never less than a quarter",
)
row_parallel_output = RankExercise(
    expected=lambda rank, ranks: [100 + sum(other + 1 for other in range(ranks)), 200 + sum((other + 1) * other for other in range(ranks))],
    mistakes={
        "the bias was summed too: add it once, after the sum": lambda rank, ranks: [
            100 * ranks + sum(other + 1 for other in range(ranks)),
            200 * ranks + sum((other + 1) * other for other in range(ranks)),
        ],
        "the bias is missing": lambda rank, ranks: [sum(other + 1 for other in range(ranks)), sum((other + 1) * other for other in range(ranks))],
        "that is this rank's part of the sum": lambda rank, ranks: [100 + rank + 1, 200 + (rank + 1) * rank],
    },
    praise="sum the products, then add the bias once",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 06


micro_batches_for = Exercise(
    reference=lambda stages, fraction: (stages - 1) * (1 - fraction) / fraction,
    cases=({"stages": 4, "fraction": 0.2}, {"stages": 2, "fraction": 0.1}, {"stages": 8, "fraction": 0.05}),
    mistakes={
        "that is Megatron-LM's ratio of bubble to useful time; asked is the part of the whole": lambda stages, fraction: (stages - 1) / fraction,
        "a pipeline of p stages fills in p - 1 slots": lambda stages, fraction: stages * (1 - fraction) / fraction,
        "that is the bubble in slots; divide by the fraction": lambda stages, fraction: (stages - 1) * (1 - fraction),
    },
    praise="a fifth is idle with four micro-batches per stage, near enough",
)
middle_stage_bytes = Exercise(
    reference=lambda batch, sequence, width, element, micro_batches: theory.pipeline_wire_bytes(batch, sequence, width, element, micro_batches),
    cases=(
        {"batch": 2, "sequence": 32, "width": 64, "element": 4, "micro_batches": 8},
        {"batch": 1, "sequence": 2048, "width": 12288, "element": 2, "micro_batches": 64},
    ),
    mistakes={
        "activations go forward, and gradients back": lambda batch, sequence, width, element, micro_batches: (
            micro_batches * element * batch * sequence * width
        ),
        "that is one micro-batch": lambda batch, sequence, width, element, micro_batches: 2 * element * batch * sequence * width,
        "that is what passes through: half of it is received": lambda batch, sequence, width, element, micro_batches: (
            4 * micro_batches * element * batch * sequence * width
        ),
    },
    praise="however many layers the stage has",
)


def _relayed(rank, ranks):
    number = 1
    for stage in range(rank + 1):
        number = 2 * number + stage
    return number


relay = RankExercise(
    expected=_relayed,
    mistakes={
        "that is what it would compute from 1: has it received anything?": lambda rank, ranks: 2 + rank if rank else 2,
        "that is what it received; double it and add the rank": lambda rank, ranks: _relayed(rank - 1, ranks) if rank else 1,
        "add the rank after doubling, not before": lambda rank, ranks: [2, 6, 16, 38][rank],
    },
    praise="each waits for the one before: a pipeline with one micro-batch",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 07


momentum_zero_1 = Exercise(
    reference=lambda ranks: 4 + 8 / ranks,
    cases=({"ranks": 1}, {"ranks": 4}, {"ranks": 64}),
    mistakes={
        "that is Adam, which keeps two means": lambda ranks: 4 + 12 / ranks,
        "gradients are whole under ZeRO-1": lambda ranks: 2 + 10 / ranks,
        "the fp32 master weights are divided too": lambda ranks: 8 + 4 / ranks,
    },
    praise="master weights and one mean are divided, parameters and gradients are not",
)
zero_1_ranks_needed = Exercise(
    reference=lambda parameters, memory: 12 * parameters / (memory - 4 * parameters),
    cases=({"parameters": 7.5e9, "memory": 40e9}, {"parameters": 1e9, "memory": 16e9}),
    mistakes={
        "four bytes per parameter stay on every rank": lambda parameters, memory: 12 * parameters / memory,
        "not all sixteen are divided": lambda parameters, memory: 16 * parameters / memory,
        "the other way round": lambda parameters, memory: (memory - 4 * parameters) / (12 * parameters),
    },
    praise="and below four bytes per parameter no number of ranks is enough",
)
update_part = RankExercise(
    expected=lambda rank, ranks: [10 * (owner + 1) - (ranks - 1) / 2 for owner in range(ranks)],
    mistakes={
        "that is the sum of the gradients; divide by the ranks": lambda rank, ranks: [
            10 * (owner + 1) - ranks * (ranks - 1) / 2 for owner in range(ranks)
        ],
        "that is this rank's own gradient: sum them over the ranks first": lambda rank, ranks: [10 * (owner + 1) - rank for owner in range(ranks)],
        "only its own weight has moved: gather the others'": lambda rank, ranks: [
            10 * (owner + 1) - ((ranks - 1) / 2 if owner == rank else 0) for owner in range(ranks)
        ],
    },
    praise="each updated one weight, and all know four",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 08


micro_batch_size = Exercise(
    reference=lambda train_batch, accumulation, ranks: train_batch / (accumulation * ranks),
    cases=({"train_batch": 16, "accumulation": 4, "ranks": 2}, {"train_batch": 1024, "accumulation": 8, "ranks": 64}),
    mistakes={
        "the ranks share the batch": lambda train_batch, accumulation, ranks: train_batch / accumulation,
        "that is a rank's share of a step, which comes in several micro-batches": lambda train_batch, accumulation, ranks: train_batch / ranks,
    },
    praise="the article fed one sentence where its configuration says two",
)
stage_2_saves = Exercise(
    reference=lambda ranks: 2 - 2 / ranks,
    cases=({"ranks": 2}, {"ranks": 4}, {"ranks": 64}),
    mistakes={
        "each rank keeps its own part of the gradients": lambda ranks: 2,
        "that is what is kept": lambda ranks: 2 / ranks,
        "that is the saving against no ZeRO at all": lambda ranks: 14 - 14 / ranks,
    },
    praise="two bytes at most, and only until the last backward pass",
)
stage_2_units = Exercise(
    reference=lambda accumulation: accumulation + 1,
    cases=({"accumulation": 1}, {"accumulation": 4}, {"accumulation": 16}),
    mistakes={
        "parameters are gathered once per step": lambda accumulation: 2 * accumulation,
        "the updated parameters are sent too": lambda accumulation: accumulation,
        "that is stage 1; stage 2 cannot wait for the last micro-batch": lambda accumulation: 2,
        "that is with whole buckets all-reduced": lambda accumulation: 2 * accumulation + 1,
    },
    praise="with 16 micro-batches 17 units, where stage 1 sends 2",
)
own_gradients = RankExercise(
    expected=lambda rank, ranks: [1.5 if place < 3 else 15.0 for place in (2 * rank, 2 * rank + 1)],
    mistakes={
        "that is the sum; divide by the ranks": lambda rank, ranks: [6.0 if place < 3 else 60.0 for place in (2 * rank, 2 * rank + 1)],
        "that is its own gradient: nothing was reduced": lambda rank, ranks: [rank if place < 3 else 10 * rank for place in (2 * rank, 2 * rank + 1)],
        "the first tensor has three numbers, so rank 1 owns one of each": lambda rank, ranks: [1.5, 1.5] if rank < 2 else [15.0, 15.0],
    },
    praise="rank 1 owns a number of each tensor: it sits on the border",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 09


zero_3_largest_model = Exercise(
    reference=lambda memory, ranks, activations: ranks * (memory - activations) / 16,
    cases=({"memory": 80e9, "ranks": 8, "activations": 20e9}, {"memory": 24e9, "ranks": 2, "activations": 8e9}),
    mistakes={
        "that is one GPU: stage 3 divides all sixteen bytes": lambda memory, ranks, activations: (memory - activations) / 16,
        "gradients and the twelve bytes are there too": lambda memory, ranks, activations: ranks * (memory - activations) / 2,
        "that is ZeRO-2, which keeps parameters whole": lambda memory, ranks, activations: (memory - activations) / (2 + 14 / ranks),
        "every rank has activations of its own": lambda memory, ranks, activations: (ranks * memory - activations) / 16,
    },
    praise="eight GPUs of 80 GB, a quarter of each for activations, train 30 billion parameters",
)
stage_3_units = Exercise(
    reference=lambda accumulation, checkpointing: accumulation * (4 if checkpointing else 3),
    cases=(
        {"accumulation": 4, "checkpointing": False},
        {"accumulation": 4, "checkpointing": True},
        {"accumulation": 1, "checkpointing": True},
    ),
    mistakes={
        "every micro-batch gathers and reduces anew": lambda accumulation, checkpointing: 4 if checkpointing else 3,
        "that is stage 2's k + 1": lambda accumulation, checkpointing: accumulation + 1,
        "computing again needs the parameters again": lambda accumulation, checkpointing: 3 * accumulation,
        "gathered for the forward pass, and again for the backward pass": lambda accumulation, checkpointing: (
            accumulation * (3 if checkpointing else 2)
        ),
    },
    praise="the price of holding nothing",
)
use_shards = RankExercise(
    expected=lambda rank, ranks: float(rank * sum(other + 1 for other in range(ranks))),
    mistakes={
        "that is its own weight only: gather the others": lambda rank, ranks: float(rank * (rank + 1)),
        "that is the sum over the ranks' inputs: the weights travel, the inputs do not": lambda rank, ranks: float(
            sum(other * (other + 1) for other in range(ranks))
        ),
    },
    praise="every rank used four weights and keeps one",
)


# ---------------------------------------------------------------------------------------------------------------- lesson 10


largest_built_in_parts = Exercise(
    reference=lambda memory, ranks, largest: (memory / 8 - 6 * largest) * ranks / 2,
    cases=({"memory": 1e12, "ranks": 64, "largest": 6e8}, {"memory": 2e12, "ranks": 1024, "largest": 12e9}),
    mistakes={
        "every rank of the host has its own": lambda memory, ranks, largest: (memory - 6 * largest) * ranks / 2,
        "parts are of the model in bf16": lambda memory, ranks, largest: (memory / 8 - 6 * largest) * ranks / 4,
        "a matrix is made in fp32 and cast: six bytes for a moment": lambda memory, ranks, largest: (memory / 8 - 2 * largest) * ranks / 2,
        "the matrix is beside the parts": lambda memory, ranks, largest: memory / 8 * ranks / 2,
        "the model is divided among all ranks, not only this host's": lambda memory, ranks, largest: (memory / 8 - 6 * largest) * 8 / 2,
    },
    praise="eight hosts of 1 TB build almost four trillion",
)
checkpoint_bytes = Exercise(
    reference=lambda parameters, stage: parameters * (12 if stage == 3 else 14),
    cases=({"parameters": 7e9, "stage": 1}, {"parameters": 7e9, "stage": 2}, {"parameters": 7e9, "stage": 3}),
    mistakes={
        "gradients are not saved": lambda parameters, stage: 16 * parameters,
        "stage 3 saves no bf16 weights: they are the master weights, rounded": lambda parameters, stage: 14 * parameters,
        "stages 1 and 2 save the whole bf16 weights too": lambda parameters, stage: 12 * parameters,
        "that is Adam without the master weights": lambda parameters, stage: parameters * (8 if stage == 3 else 10),
    },
    praise="however many ranks wrote it",
)
change_a_weight = RankExercise(
    expected=lambda rank, ranks: [2.0 * rank, 2.0 * rank + 1],
    mistakes={
        "that is the whole weight: your part is in `ds_tensor`": lambda rank, ranks: [float(number) for number in range(8)],
        "every rank's part begins where the one before ends": lambda rank, ranks: [0.0, 1.0],
    },
    praise="gathered, changed on one rank, and divided again",
)
