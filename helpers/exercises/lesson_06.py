"""Answers of lesson 06, and the mistakes that people make there."""

from helpers import theory
from helpers.exercises.engine import Exercise, RankExercise
from helpers.exercises.guesses import guess as guess

micro_batches_for = Exercise(
    reference=lambda stages, fraction: (stages - 1) * (1 - fraction) / fraction,
    cases=({"stages": 4, "fraction": 0.2}, {"stages": 2, "fraction": 0.1}, {"stages": 8, "fraction": 0.05}),
    mistakes={
        "that is Megatron-LM's ratio of bubble to useful time; asked is the part of the whole": lambda stages, fraction: (stages - 1) / fraction,
        "a pipeline of p stages fills in p - 1 slots": lambda stages, fraction: stages * (1 - fraction) / fraction,
        "that is the bubble in slots; divide by the fraction": lambda stages, fraction: (stages - 1) * (1 - fraction),
    },
    praise="filling and draining take the same slots however many micro-batches there are, so more of them dilute the bubble",
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
    praise="a micro-batch crosses the border ahead forward and the border behind backward, however many layers lie between them",
)


def _relayed(rank, given, step=lambda number, own: 2 * number + own):
    number = 1
    for arguments in given[: rank + 1]:
        number = step(number, arguments["own"])
    return number


relay = RankExercise(
    inputs=lambda ranks, random: [{"own": own} for own in random.sample(range(2, 20), ranks)],
    expected=_relayed,
    mistakes={
        "that is what it would compute from 1: has it received anything?": lambda rank, given: 2 + given[rank]["own"],
        "that is what it received; double it and add its own number": lambda rank, given: _relayed(rank - 1, given),
        "add its own number after doubling, not before": lambda rank, given: _relayed(rank, given, lambda number, own: 2 * (number + own)),
    },
    praise="each stage waits for the one before: with one micro-batch, one stage works at a time",
)
