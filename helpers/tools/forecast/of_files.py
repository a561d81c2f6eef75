"""What the files beside DeepSpeed's own say: Accelerate's, and the Trainer's arguments.  An option of the
command line counts more than a file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from ..rehearsal.question import as_transformers, shape_of
from ..rehearsal.refusing import BadQuestion
from . import of_accelerate, of_trainer, trainer_keys
from .keyed_files import outvoted
from .options import Options

GPUS_PER_HOST = 8  # where nothing is said
MISSING = {"ranks": "how many GPUs there are", "sequence": "how many tokens a sequence has"}


@dataclass(frozen=True)
class Training:
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


def read(options: Options, model: dict) -> Training:
    """Read the files that the options name.

    Args:
        model: the keys of a model's configuration.

    Raises:
        BadQuestion: a file is refused, files contradict one another, or something is missing.
    """
    launch, keys, deepspeed = None, None, options.deepspeed
    if options.accelerate:
        launch = of_accelerate.read(options.accelerate, options.ranks, deepspeed)
    if options.training_arguments:
        keys = trainer_keys.read(options.training_arguments, options.checkpointing)
        keys = _with_options(keys, options)
    if not launch and not (keys.values.get("deepspeed") if keys else deepspeed):
        raise BadQuestion("nothing names a configuration of DeepSpeed: give one with --deepspeed")
    known = {
        "ranks": options.ranks or (launch.ranks if launch else None),
        "sequence": options.sequence or (keys.sequence if keys else None),
    }
    for name in [name for name in known if known[name] is None]:
        raise BadQuestion(f"nothing says {MISSING[name]}: give --{name}")
    config, checkpointing = deepspeed, bool(options.checkpointing)
    with warnings.catch_warnings(), of_accelerate.variables(launch.environment if launch else {}):
        warnings.simplefilter("ignore")
        if keys:
            shape = shape_of(as_transformers(model))
            config, checkpointing = of_trainer.configuration(keys, shape, known["ranks"])
        elif launch:
            with of_accelerate.refused("Accelerate", options.accelerate):
                config = of_accelerate.configuration()
    return Training(
        config=config,
        **known,
        micro_batch=options.micro_batch,
        checkpointing=checkpointing,
        gpus_per_host=options.gpus_per_host or (launch.gpus_per_host if launch else GPUS_PER_HOST),
        notes=(*(launch.notes if launch else ()), *(keys.notes if keys else ())),
    )


def _with_options(keys, options):
    """The Trainer's arguments, with what options say in the place of the file."""
    config, path = keys.values.get("deepspeed"), keys.path
    config = "an object" if isinstance(config, dict) else config
    notes = outvoted("deepspeed", options.deepspeed, config, f"deepspeed in {path}")
    notes += outvoted("sequence", options.sequence, keys.sequence, path)
    values = keys.values | ({"deepspeed": options.deepspeed} if options.deepspeed else {})
    return replace(keys, values=values, notes=(*keys.notes, *notes))
