"""What the files beside DeepSpeed's own say: Accelerate's, and the Trainer's arguments.  An option of the
command line counts more than a file."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass, replace

from ..rehearsal.question import as_transformers, shape_of
from ..rehearsal.refusing import BadQuestion
from . import of_accelerate, of_trainer, trainer_keys
from .keyed_files import outvoted

GPUS_PER_HOST = 8  # where nothing is said
MISSING = {"ranks": "how many GPUs there are", "sequence": "how many tokens a sequence has"}


@dataclass(frozen=True)
class Said:
    """What options and files say together.

    Attributes:
        config: DeepSpeed's, a file or a dict.
        ranks, sequence, micro_batch, checkpointing: as `question.ask` takes them.
        gpus_per_host: of a machine.
        notes: what counted, where two said different things, and what was not read.
    """

    config: str | dict
    ranks: int
    sequence: int
    micro_batch: int | None
    checkpointing: bool
    gpus_per_host: int
    notes: tuple[str, ...] = ()


def said(options: argparse.Namespace, model: dict) -> Said:
    """Read the files that the options name.

    Args:
        model: the keys of a model's configuration.

    Raises:
        BadQuestion: a file is refused, files contradict one another, or something is missing.
    """
    launched, keys, deepspeed = None, None, options.deepspeed
    if options.accelerate:
        launched = of_accelerate.launched(options.accelerate, options.ranks, deepspeed)
    if options.training_arguments:
        keys = _changed(trainer_keys.read(options.training_arguments, options.checkpointing), options)
    if not launched and not (keys.values.get("deepspeed") if keys else deepspeed):
        raise BadQuestion("nothing names a configuration of DeepSpeed: give one with --deepspeed")
    known = {
        "ranks": options.ranks or (launched.ranks if launched else None),
        "sequence": options.sequence or (keys.sequence if keys else None),
    }
    for name in [name for name in known if known[name] is None]:
        raise BadQuestion(f"nothing says {MISSING[name]}: give --{name}")
    config, checkpointing = deepspeed, bool(options.checkpointing)
    with warnings.catch_warnings(), of_accelerate.variables(launched.environment if launched else {}):
        warnings.simplefilter("ignore")
        if keys:
            shape = shape_of(as_transformers(model))
            config, checkpointing = of_trainer.configured(keys, shape, known["ranks"])
        elif launched:
            with of_accelerate.refused("Accelerate", options.accelerate):
                config = of_accelerate.configured()
    return Said(
        config=config,
        **known,
        micro_batch=options.micro_batch,
        checkpointing=checkpointing,
        gpus_per_host=options.gpus_per_host or (launched.gpus_per_host if launched else GPUS_PER_HOST),
        notes=(*(launched.notes if launched else ()), *(keys.notes if keys else ())),
    )


def _changed(keys, options):
    """The Trainer's arguments, with what options say in the place of the file."""
    said, path = keys.values.get("deepspeed"), keys.path
    said = "an object" if isinstance(said, dict) else said
    notes = outvoted("deepspeed", options.deepspeed, said, f"deepspeed in {path}")
    notes += outvoted("sequence", options.sequence, keys.sequence, path)
    values = keys.values | ({"deepspeed": options.deepspeed} if options.deepspeed else {})
    return replace(keys, values=values, notes=(*keys.notes, *notes))
