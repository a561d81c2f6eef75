"""Keys of a file of training arguments: transformers' `TrainingArguments` as JSON or YAML, and what TRL,
LlamaFactory and axolotl write beside or instead of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..rehearsal.refusing import BadQuestion
from .keyed_files import outvoted, read_keys

_names = str.split
BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
NUMBERS = _names("max_grad_norm learning_rate adam_beta1 adam_beta2 adam_epsilon weight_decay warmup_steps")
CHECKPOINTING = _names("gradient_checkpointing activation_checkpointing")
SWITCHES = _names("bf16 fp16 bf16_full_eval fp16_full_eval") + CHECKPOINTING
KWARGS = _names("gradient_checkpointing_kwargs activation_checkpointing_kwargs")
USED = [BATCH, STEPS, "max_steps", "optim", "deepspeed", *NUMBERS, *SWITCHES, *KWARGS]
LENGTHS = _names("max_length max_seq_length cutoff_len sequence_len")
OTHER_NAMES = {"micro_batch_size": BATCH, "optimizer": "optim"}  # axolotl's
MARKS = {  # keys by which a file is known
    "axolotl": _names("base_model micro_batch_size sequence_len"),
    "LlamaFactory": _names("finetuning_type cutoff_len"),
    "TRL": _names("max_length dataset_text_field packing"),
}
OWN = {  # keys of the dialects whose values are read here
    *(*USED, *LENGTHS, *OTHER_NAMES, "disable_gradient_checkpointing", "finetuning_type", "stage"),
}
# Keys that change what is held, wherever they are in use.
CHANGING = {
    "adapters": "use_peft adapter lora_r lora_rank lora_alpha lora_target lora_target_modules lora_modules "
    "lora_target_linear peft_config use_dora use_rslora",
    "a quantised model": "load_in_4bit load_in_8bit quantization quantization_bit quantization_method qat",
    "frozen parameters": "unfrozen_parameters freeze_trainable_layers freeze_trainable_modules",
    "another training than of a language model alone": "rl num_generations ref_model_init_kwargs ref_model "
    "precompute_ref_log_probs reward_weights reward_model reward_funcs beta max_prompt_length "
    "max_completion_length",
    "FSDP": "fsdp",
    "torch.compile": "torch_compile torch_compile_backend torch_compile_mode torchdynamo",
    "other kernels": "use_liger_kernel use_liger enable_liger_kernel liger_fused_linear_cross_entropy "
    "unsloth use_unsloth use_unsloth_gc plugins",
    "another loss": "label_smoothing_factor loss_type",
    "offloaded activations": "activation_offloading",
    "another optimizer": "adafactor optim_target_modules use_galore use_apollo use_badam use_muon "
    "use_adam_mini",
    "another way to share the work": "parallelism_config tensor_parallel_size context_parallel_size "
    "sequence_parallel_degree tp_size",
    "other types of numbers": "fp8 upcast_layernorm upcast_lmhead_output pure_bf16",
    "a batch size that the run finds": "auto_find_batch_size",
    "training on CPUs": "use_cpu no_cuda",
}
# Fields of TrainingArguments that change a little.
SMALL = set(_names("neftune_noise_alpha torch_empty_cache_steps use_cache optim_args"))
UNUSED = (None, False, "", "no", "none", "NONE", "nll", 0, 1, [], {})
# Beginnings of keys that change no byte of a step, in whatever file.
SILENT = _names("""
    _n_gpu adam auto_resume average_tokens base_model batch_eval bench cache_dir chat_template cosine
    data ddp debug default_system dispatch_batches do_ early_stop eos_token eval evaluation fp16_backend
    fp16_opt fsdp_ group_by half_precision hub ignore_data include jit_mode length_column local_rank log
    lora_ loss_watch lr max_samples metric mlflow model_name model_revision neat_packing no_cuda
    num_epochs output overwrite packing pad_to past_index plot_loss predict preprocessing push_ ray_
    report resume sample_packing save seed shuffle special_tokens split_batches strict swanlab template
    tokenize torchdynamo tpu trackio train_on truncation trust_remote type_ use_fast use_ipex use_mps
    val_ wandb warmup xpu
""")
IS_SILENT = re.compile("|".join(SILENT))


@dataclass(frozen=True)
class Keys:
    """What a file of training arguments says.

    Attributes:
        path: of the file.
        values: {a field of TrainingArguments: its value}, those that matter here.
        sequence: tokens of the longest sequence.
        notes: sentences: what was taken otherwise than it is written, or not read.
    """

    path: str
    values: dict
    sequence: int | None
    notes: tuple[str, ...]


def read(path: str, checkpointing: bool | None = None) -> Keys:
    """Read a file of training arguments.

    Args:
        checkpointing: what counts in its place.

    Raises:
        BadQuestion: a key changes what is held and is not rehearsed, or has a value of another kind, or
            the library that reads the file has defaults which differ by its version.
    """
    keys = read_keys(path)
    dialect = next((name for name, marks in MARKS.items() if set(marks) & set(keys)), None)
    _refuse(path, keys, dialect)
    keys |= _in_transformers_words(keys, dialect)
    values, notes = {name: keys[name] for name in USED if keys.get(name) is not None}, []
    if checkpointing is not None:
        in_file = next((values[name] for name in reversed(CHECKPOINTING) if name in values), None)
        notes = outvoted("checkpointing", checkpointing, in_file, f"gradient_checkpointing in {path}")
        values = {name: value for name, value in values.items() if name not in (*CHECKPOINTING, *KWARGS)}
        values["gradient_checkpointing"] = checkpointing
    _check_kinds(path, values)
    _check_defaults(path, values, dialect)
    return Keys(path, values, _sequence(path, keys), (*notes, *_notes(path, keys, values, dialect)))


def _in_transformers_words(keys, dialect):
    """What a dialect says otherwise, or takes where nothing is said."""
    if dialect == "LlamaFactory":
        return {} if keys.get("disable_gradient_checkpointing") else {"gradient_checkpointing": True}
    if dialect != "axolotl":
        return {}
    renamed = {meant: keys[name] for name, meant in OTHER_NAMES.items() if keys.get(name) is not None}
    return renamed | ({"bf16": True} if keys.get("bf16") == "auto" else {})  # as on every GPU since the A100


def is_used(value: object) -> bool:
    return value is True or value not in UNUSED


def _refuse(path, keys, dialect):
    kind, stage = keys.get("finetuning_type"), keys.get("stage")
    kind = kind or ("lora" if dialect == "LlamaFactory" else "full")  # which is LlamaFactory's default
    if kind != "full":
        raise BadQuestion(f"{path} asks for finetuning_type {kind}: with a file, full training is rehearsed")
    if dialect == "LlamaFactory" and stage not in (None, "sft", "pt"):
        raise BadQuestion(f"{path} asks for stage {stage}: of LlamaFactory's, pt and sft are rehearsed")
    shared = keys.get("accelerator_config")
    if isinstance(shared, dict) and (
        shared.get("split_batches") or shared.get("gradient_accumulation_kwargs")
    ):
        raise BadQuestion(f"accelerator_config in {path} divides batches otherwise: leave it out")
    is_off = keys.get("use_peft") is False or dialect == "LlamaFactory"  # then lora_r and others wait unused
    for what, names in CHANGING.items():
        for name in _names(names):
            if is_used(keys.get(name)) and not (is_off and name.startswith("lora_")):
                wish = f"{path} asks for {what} ({name}: {keys[name]!r}), which"
                raise BadQuestion(f"{wish} a file cannot ask for here: leave it out")


def _check_kinds(path, values):
    """Refuse values of another kind; numbers that YAML takes for texts, as 1e-5, become numbers."""
    for name in set(NUMBERS) & set(values):
        try:
            values[name] = float(values[name])
        except (TypeError, ValueError):
            raise BadQuestion(f"{name} in {path} must be a number, not {values[name]!r}") from None
    for name in {BATCH, STEPS} & set(values):
        if type(values[name]) is not int or values[name] < 1:
            raise BadQuestion(f"{name} in {path} must be a whole number, 1 or more, not {values[name]!r}")
    for name in set(SWITCHES) & set(values):
        if type(values[name]) is not bool:
            raise BadQuestion(f"{name} in {path} must be true or false, not {values[name]!r}")
    for name in set(KWARGS) & set(values):
        other = values[name] if isinstance(values[name], dict) else {"no keys": values[name]}
        other = {key: value for key, value in other.items() if key != "use_reentrant"}
        if other:
            raise BadQuestion(f"{name} in {path}: of its keys use_reentrant alone is rehearsed, not {other}")


def _check_defaults(path, values, dialect):
    """Refuse what a library fills by defaults that are not transformers'."""
    missing = []
    if dialect == "TRL":  # newer versions checkpoint and take bf16, older ones do not
        missing = [] if set(CHECKPOINTING) & set(values) else ["gradient_checkpointing"]
        missing += [] if {"bf16", "fp16"} & set(values) else ["bf16"]
    elif dialect == "axolotl":
        missing = [] if BATCH in values else ["micro_batch_size"]
    if missing:
        defaults = f"{dialect} has defaults of its own for {' and '.join(missing)}"
        raise BadQuestion(f"{defaults}, which differ by its version: write a value into {path}")


def _sequence(path, keys):
    lengths = {name: keys[name] for name in LENGTHS if keys.get(name) is not None}
    if len(set(lengths.values())) > 1:
        raise BadQuestion(f"{path} says how long a sequence is in several ways: {lengths}")
    for name, length in lengths.items():
        if type(length) is not int or length < 1:
            raise BadQuestion(f"{name} in {path} must be a whole number, 1 or more, not {length!r}")
        return length


def _notes(path, keys, values, dialect):
    from transformers import TrainingArguments

    known = {*OWN, *TrainingArguments.__dataclass_fields__, *_names(" ".join(CHANGING.values()))} - SMALL
    others = [name for name in keys if name not in known and not IS_SILENT.match(name)]
    others = [name for name in others if keys[name] not in (None, False, [], {})]
    if others:
        yield f"of {path} is not read: {', '.join(sorted(others))}"
    if BATCH not in values:
        yield f"{path} names no {BATCH}: transformers takes 8"
    if dialect == "LlamaFactory" and keys.get("gradient_checkpointing") and values["gradient_checkpointing"]:
        yield "LlamaFactory checkpoints all blocks unless disable_gradient_checkpointing is true"
    if dialect == "TRL" and "loss_type" not in keys:
        yield "newer versions of TRL compute the loss in chunks, which holds less than what is rehearsed"
    if any((values.get(name) or {}).get("use_reentrant") for name in KWARGS):
        yield "checkpointing is rehearsed without reentrance (use_reentrant: false)"
