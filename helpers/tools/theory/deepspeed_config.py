"""The one reader of DeepSpeed's configuration: what DeepSpeed 0.19.8 makes of a file or a dict.

DeepSpeed's own `DeepSpeedConfig` reads it; what it refuses is refused here.  Before that, "auto" is filled by
the rules of transformers (transformers/integrations/deepspeed.py).  Three things differ from DeepSpeed: a
section that is null counts as absent, the number of ranks is an argument, and `Configuration.notes` says what
DeepSpeed says in its log or nowhere.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from .deepspeed_keys import (
    ACCUMULATION,
    BATCHES,
    KNOWN,
    MICRO,
    MODELS,
    TRAIN,
    BadConfiguration,
    check_kinds,
    unknown_keys,
)

if TYPE_CHECKING:
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from transformers import PreTrainedConfig


OWN_AUTO = ("data_types.keep_in_fp32_modules", "pipeline.stages", "expert_parallel.score_apply")
TRAINER = {  # {section: {key: what transformers' TrainingArguments by default put in the place of "auto"}}
    "": {"gradient_clipping": 1.0},
    "optimizer.params": {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "scheduler.params": dict(warmup_min_lr=0, warmup_max_lr=5e-5, warmup_num_steps=1, total_num_steps=1),
}
BY_WIDTH = {  # in `zero_optimization`, from the model's hidden size; the last two at stage 3 alone
    "reduce_bucket_size": lambda width: width * width,
    "stage3_prefetch_bucket_size": lambda width: int(0.9 * width * width),
    "stage3_param_persistence_threshold": lambda width: 10 * width,
}


@dataclass(frozen=True)
class Configuration:
    """What DeepSpeed makes of a configuration; batch sizes are None where nothing says."""

    # for `deepspeed.initialize`: no null sections, no "auto" that transformers fills, today's spelling, and
    # batch sizes as far as they are known
    config: dict
    deepspeed: DeepSpeedConfig = field(repr=False)  # DeepSpeed's own object, which has every value
    micro_batch: int | None  # sequences of a micro-batch on a rank
    accumulation: int | None  # micro-batches of a step
    train_batch: int | None  # sequences of a step on all ranks
    notes: tuple[str, ...]  # sentences: what was assumed, and keys that DeepSpeed passes over

    @property
    def zero(self) -> DeepSpeedZeroConfig:
        return self.deepspeed.zero_config

    @property
    def stage(self) -> int:
        return int(self.zero.stage)

    @property
    def dtype(self) -> str:
        """Of the parameters: "bf16", "fp16" or "fp32"."""
        half = "fp16" if self.deepspeed.float16_config.enabled else "fp32"
        return "bf16" if self.deepspeed.bfloat16_config.enabled else half

    @property
    def offload(self) -> dict[str, str]:
        """{"offload_optimizer" or "offload_param": "cpu" or "nvme"}; empty where all stays on the GPU."""
        parts = {name: getattr(self.zero, name) for name in ("offload_optimizer", "offload_param")}
        return {name: str(part.device) for name, part in parts.items() if part and part.device != "none"}


def read(
    config: dict | str | Path,
    *,
    ranks: int | None = None,
    model: PreTrainedConfig | None = None,
    micro_batch: int | None = None,
    accumulation: int | None = None,
) -> Configuration:
    """Read a configuration as DeepSpeed does; a BadConfiguration where it cannot be read, or is refused.

    Args:
        config: a dict, which is not changed, or a file in hjson: JSON with comments and trailing commas.
        ranks: the data-parallel ones; without them batch sizes are taken as they stand and not compared.
        model: a configuration of transformers, for what is "auto" and depends on the hidden size.
        micro_batch, accumulation: in the place of what the configuration says.  With one of them its
            train_batch_size decides the other; with both it is dropped.
    """
    config, notes = _without_null(_loaded(config)), []
    check_kinds(config)
    _fill_precision(config, notes)
    _fill_auto(config, model, notes)
    old = config.pop("bfloat16", None)  # the old spelling counts where there is no "bf16"
    config |= {"bf16": config.get("bf16", old)} if old else {}
    notes += unknown_keys(config)
    sizes = _batches(config, micro_batch, accumulation)
    if ranks and (sizes[TRAIN] or sizes[MICRO]):
        parsed = _parsed(config | {key: size for key, size in sizes.items() if size}, ranks)
        sizes = {key: getattr(parsed, key) for key in BATCHES}
    else:
        parsed = _parsed(config | {MICRO: 1}, 1)
    if "zero_optimization" in config:
        zero = parsed.zero_config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        config["zero_optimization"] = {key: zero[key] for key in zero if not key.startswith("cpu_offload")}
    config |= {key: size for key, size in sizes.items() if size}
    return Configuration(config, parsed, sizes[MICRO], sizes[ACCUMULATION], sizes[TRAIN], tuple(notes))


def _loaded(config):
    """A dict that may be changed."""
    if isinstance(config, (str, Path)):
        import hjson
        from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys

        try:
            text = Path(config).read_text()
            config = hjson.loads(text, object_pairs_hook=dict_raise_error_on_duplicate_keys)
        except OSError as error:
            raise BadConfiguration(f"{config} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise BadConfiguration(f"{config} is not JSON that DeepSpeed reads: {error}") from None
    if not isinstance(config, dict):
        raise BadConfiguration(f"DeepSpeed's configuration is an object with keys, not {config!r}")
    return copy.deepcopy(config)


def _without_null(config):
    """Without null at the top and in sections that are not of pydantic, which knows where null may stand."""
    config = {key: value for key, value in config.items() if value is not None}
    for name in set(KNOWN) & set(config):
        if isinstance(config[name], dict):
            config[name] = {key: value for key, value in config[name].items() if value is not None}
    return config


def _fill_precision(config, notes):
    """Where "enabled" is "auto" the Trainer's --bf16 or --fp16 decides: with both open it is bf16."""
    enabled = {name: config.get(name, {}).get("enabled") for name in ("bf16", "fp16")}
    for name in [name for name in enabled if enabled[name] == "auto"]:
        enabled[name] = config[name]["enabled"] = True not in enabled.values()
        if enabled[name]:
            notes.append(f'{name} is assumed: "enabled" is "auto", which the Trainer fills')


def _fill_auto(config, model, notes):
    """Put in the place of "auto" what transformers puts there."""
    for section, above, key in list(_open(config)):
        path, is_zero = f"{above}.{key}" if above else key, above == "zero_optimization"
        if path in OWN_AUTO:
            continue
        del section[key]
        if is_zero and key == "reduce_bucket_size" or key in BY_WIDTH and str(section.get("stage")) == "3":
            section[key] = BY_WIDTH[key](_hidden_size(model, path))
        elif key in TRAINER.get(above, {}):
            section[key] = TRAINER[above][key]
        elif above.partition(".")[0] in MODELS:
            if not (is_zero and key in BY_WIDTH):  # of stage 3, and it is another stage
                notes.append(f'{path} is "auto", which transformers leaves: DeepSpeed takes its default')
        elif path not in BATCHES:
            raise BadConfiguration(f'{path} is "auto", which transformers does not fill: write a value')


def _open(section: dict, above: str = "") -> Iterator[tuple[dict, str, str]]:
    """All that is "auto": (the section, its path, the key), as (..., "optimizer.params", "lr")."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _open(value, f"{above}.{key}" if above else key)
        elif value == "auto":
            yield section, above, key


def _hidden_size(model, path):
    """The hidden size where transformers looks for it; of several the largest."""
    for holder in (model, getattr(model, "text_config", None)):
        if hasattr(holder, "hidden_size"):
            return holder.hidden_size
        if hasattr(holder, "hidden_sizes"):
            return max(holder.hidden_sizes)
    missing = "no model was given" if model is None else "the model's configuration has none"
    raise BadConfiguration(f'{path} is "auto", which needs the hidden size, and {missing}: write a number')


def _batches(config, micro_batch, accumulation):
    """{key: size or None}, taken out of the configuration."""
    sizes = {key: config.pop(key) for key in BATCHES if key in config}
    for key, size in sizes.items():
        if type(size) not in (int, float) or size < 1 or size != int(size):
            raise BadConfiguration(f"{key} must be a whole number, 1 or more, not {size!r}")
    sizes = {key: int(sizes[key]) if key in sizes else None for key in BATCHES}
    asked = {MICRO: micro_batch, ACCUMULATION: accumulation}
    asked = {key: size for key, size in asked.items() if size is not None}
    if len(asked) == 1 and sizes[TRAIN]:
        sizes |= {MICRO: None, ACCUMULATION: None}  # the one that is not asked follows from the whole batch
    elif len(asked) == 2:
        sizes[TRAIN] = None
    return sizes | asked


def _parsed(config, ranks):
    """DeepSpeed's own object; its warnings about old keys and the accelerator stay out of the log.

    A private method of DeepSpeed is replaced, which takes the ranks of the process group: there is none.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        from deepspeed.runtime.config import DeepSpeedConfig

        class OfRanks(DeepSpeedConfig):
            def _configure_train_batch_size(self):
                self.world_size = ranks
                super()._configure_train_batch_size()

        return OfRanks(copy.deepcopy(config))
    except Exception as error:  # assertions, errors of pydantic, of Python and of its own
        parts = error.errors() if hasattr(error, "errors") else ()
        words = [f"{'.'.join(map(str, part['loc']))} = {part['input']!r}: {part['msg']}" for part in parts]
        refused = f"DeepSpeed {version('deepspeed')} refuses this: {'; '.join(words) or error}"
        raise BadConfiguration(refused) from error
    finally:
        logging.disable(before)
