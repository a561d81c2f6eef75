"""The reader of DeepSpeed's configuration, against DeepSpeed in real ranks and against transformers."""

import json
from dataclasses import fields
from types import SimpleNamespace

import pytest
from helpers import launch, models, theory
from helpers.tools.theory import deepspeed_keys, zero_config
from helpers.tools.theory.deepspeed_config import BadConfiguration, read

BF16 = {"bf16": {"enabled": True}}
CPU = {"device": "cpu"}
RANKS = 2
TABLE = {  # what deepspeed.initialize is given on two ranks
    "train batch alone": {"train_batch_size": 8},
    "train batch and accumulation": {"train_batch_size": 8, "gradient_accumulation_steps": 2},
    "train batch and micro-batch": {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1},
    "micro-batch alone": {"train_micro_batch_size_per_gpu": 3},
    "micro-batch and accumulation": {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2},
    "all three": {
        "train_batch_size": 12,
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
    },
    "null beside a batch": {"train_batch_size": 8, "gradient_accumulation_steps": None},
    "old bf16": {"train_batch_size": 2, "bfloat16": {"enabled": True}},
    "both spellings": {"train_batch_size": 2, "bf16": {"enabled": False}, "bfloat16": {"enabled": True}},
    "bf16 null, old spelling": {"train_batch_size": 2, "bf16": None, "bfloat16": {"enabled": True}},
    "a text for true": {"train_batch_size": 2, "bf16": {"enabled": "true"}},
    "nothing but a batch": {"train_batch_size": 2},
    "stage as a text": {"train_batch_size": 2, **BF16, "zero_optimization": {"stage": "2"}},
    "ZeRO is true": {"train_batch_size": 2, **BF16, "zero_optimization": True},
    "ZeRO is false": {"train_batch_size": 2, **BF16, "zero_optimization": False},
    "numbers as 2e5": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 2e5},
    },
    "without stage3_ in front": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 3, "param_persistence_threshold": 7, "prefetch_bucket_size": 9},
    },
    "auto that nobody fills": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 2, "sub_group_size": "auto", "overlap_comm": "auto"},
    },
    "old offload": {"train_batch_size": 2, **BF16, "zero_optimization": {"stage": 2, "cpu_offload": True}},
    "old offload, off": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 2, "cpu_offload": False},
    },
    "old offload of parameters": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 3, "cpu_offload": True, "cpu_offload_param": True},
    },
    "offload null": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 3, "offload_optimizer": None, "offload_param": None},
    },
    "offload to none": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}},
    },
    "offload to auto": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "auto"}},
    },
    "offload": {"train_batch_size": 2, **BF16, "zero_optimization": {"stage": 1, "offload_optimizer": CPU}},
    "sums in fp32": {
        "train_batch_size": 2,
        **BF16,
        "zero_optimization": {"stage": 2},
        "data_types": {"grad_accum_dtype": "float32"},
    },
    "an unknown key": {"train_batch_size": 2, **BF16, "fp8": {"enabled": True}},
    # and what it refuses
    "no batch": {**BF16},
    "accumulation alone": {"gradient_accumulation_steps": 2},
    "a batch that the ranks do not divide": {"train_batch_size": 3},
    "too small a batch": {"train_batch_size": 1},
    "three that contradict": {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
    },
    "both precisions": {"train_batch_size": 2, **BF16, "fp16": {"enabled": True}},
    "bf16 is no object": {"train_batch_size": 2, "bf16": True},
    "stage 4": {"train_batch_size": 2, "zero_optimization": {"stage": 4}},
    "stage null": {"train_batch_size": 2, "zero_optimization": {"stage": None}},
    "an unknown key of ZeRO": {"train_batch_size": 2, "zero_optimization": {"cpu_offload_params": True}},
    "an unknown key of bf16": {"train_batch_size": 2, "bf16": {"enable": True}},
    "a part that was removed": {"train_batch_size": 2, "amp": {"enabled": False}},
    "MiCS": {"train_batch_size": 2, "zero_optimization": {"stage": 3, "mics_shard_size": -1}},
    "an offload to elsewhere": {
        "train_batch_size": 2,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}},
    },
    "old and new offload": {
        "train_batch_size": 2,
        "zero_optimization": {"stage": 2, "cpu_offload": True, "offload_optimizer": CPU},
    },
    "a batch as a text": {"train_batch_size": "8"},
}


def initialised(table):
    """{name: what the engine says of its configuration, or None where DeepSpeed refuses it}."""
    import copy
    import logging

    import deepspeed
    import torch

    logging.disable(logging.WARNING)
    deepspeed.init_distributed()
    found = {}
    for name, config in table.items():
        layer = torch.nn.Linear(4, 4)
        adam = torch.optim.AdamW(layer.parameters())
        config = copy.deepcopy(config) | {"zero_force_ds_cpu_optimizer": False}
        try:
            engine, *_ = deepspeed.initialize(model=layer, optimizer=adam, config=config)
        except Exception:
            found[name] = None
            continue
        known = engine._config
        found[name] = values(known) | {
            "micro": engine.train_micro_batch_size_per_gpu(),
            "accumulation": engine.gradient_accumulation_steps(),
            "train": engine.train_batch_size(),
            "stage": engine.zero_optimization_stage(),
            "dtype": "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32",
            "offload": {
                key: str(part.device)
                for key, part in (
                    ("offload_optimizer", engine.zero_offload_optimizer()),
                    ("offload_param", engine.zero_offload_param()),
                )
                if part and part.device != "none"
            },
        }
        engine.destroy()
    return found


def values(known):
    """Every value of ZeRO's section; its old keys have become new ones."""
    zero = json.loads(known.zero_config.model_dump_json())
    return {"zero": {key: value for key, value in zero.items() if not key.startswith("cpu_offload")}}


@pytest.mark.ranks
def test_the_reader_says_what_deepspeeds_engine_says():
    for name, said in launch(initialised, ranks=RANKS, arguments={"table": TABLE}, device="cpu")[1].items():
        config = TABLE[name]
        if said is None:
            with pytest.raises(BadConfiguration):
                known = read(config, ranks=RANKS)
                if known.micro_batch is None:  # nothing says how large a batch is: DeepSpeed refuses that
                    raise BadConfiguration
            continue
        known = read(config, ranks=RANKS)
        sizes = {"micro": known.micro_batch, "accumulation": known.accumulation, "train": known.train_batch}
        own = {"stage": known.stage, "dtype": known.dtype, "offload": known.offload}
        assert values(known.deepspeed) | sizes | own == said, name
        # and what it hands on is read alike, and needs no filling
        again = read(known.config, ranks=RANKS)
        assert values(again.deepspeed) == values(known.deepspeed) and again.config == known.config, name
        assert "auto" not in json.dumps(known.config)


@pytest.mark.parametrize("config", [{"zero_optimization": None}, {"fp16": None}, {"optimizer": None}])
def test_a_section_that_is_null_is_absent(config):
    assert read(config).config == {}


def test_what_the_arguments_say_counts_more():
    config = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4}
    sizes = [
        (known.micro_batch, known.accumulation, known.train_batch)
        for known in (
            read(config, ranks=8),
            read(config, ranks=8, micro_batch=2),
            read(config, ranks=8, accumulation=1),
            read(config, ranks=8, micro_batch=2, accumulation=3),
            read({"gradient_accumulation_steps": 4}, ranks=8, micro_batch=2),
            read({"gradient_accumulation_steps": 4}, ranks=8),
        )
    ]
    assert sizes == [(8, 4, 256), (2, 16, 256), (32, 1, 256), (2, 3, 48), (2, 4, 64), (None, 4, None)]


def test_a_file_is_read_as_hjson(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{\n// halves\n"bf16": {"enabled": true},\n"zero_optimization": {"stage": 2}, # too\n}')
    assert (read(file).dtype, read(str(file)).stage) == ("bf16", 2)
    for text, words in [
        ('{"zero_optimization": {"stage": 1, "stage": 2}}', "Duplicate keys in DeepSpeed config: .'stage'"),
        ("[1]", "an object with keys"),
        ('{"a": ', "not JSON that DeepSpeed reads"),
    ]:
        file.write_text(text)
        with pytest.raises(BadConfiguration, match=words):
            read(file)
    with pytest.raises(BadConfiguration, match="cannot be read: No such file"):
        read(tmp_path / "none.json")


REFUSED = [
    ({"steps_per_print": "10"}, "steps_per_print must be a number or a boolean, not the text '10'"),
    ({"train_batch_size": True}, "train_batch_size must be a whole number, 1 or more, not True"),
    ({"train_batch_size": 2.5}, "train_batch_size must be a whole number"),
    ({"train_micro_batch_size_per_gpu": 0}, "train_micro_batch_size_per_gpu must be a whole number"),
    ({"wall_clock_breakdown": "auto"}, 'wall_clock_breakdown is "auto", which transformers does not fill'),
    ({"optimizer": {"type": "auto"}}, 'optimizer.type is "auto", which transformers does not fill'),
    ({"optimizer": "AdamW"}, "optimizer must be an object with keys, not 'AdamW'"),
    ({"zero_optimization": {"reduce_bucket_size": "auto"}}, "no model was given: write a number"),
    (3, "an object with keys, not 3"),
]


@pytest.mark.parametrize("config, words", REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_what_would_fail_later_is_refused_with_its_key(config, words):
    with pytest.raises(BadConfiguration, match=words):
        read(config)


def test_unknown_keys_are_named_with_what_they_may_mean():
    config = {
        "zero_optimisation": {"stage": 2},
        "fp8": {"enabled": True},
        "optimizer": {"type": "Adam", "lr": 1},
    }
    assert read(config).notes == (
        "DeepSpeed knows no fp8 and passes over it",
        "DeepSpeed knows no zero_optimisation and passes over it (is it zero_optimization?)",
        "DeepSpeed knows no optimizer.lr and passes over it",
    )


class Watched(dict):
    """A dict that keeps the names that it was asked for."""

    asked = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)

    def keys(self):
        return self


def test_every_key_that_deepspeed_asks_for_is_known():
    from deepspeed.runtime.config import _REMOVED_TOP_LEVEL_CONFIG_KEYS, DeepSpeedConfig

    DeepSpeedConfig(Watched(train_micro_batch_size_per_gpu=1))
    asked = Watched.asked - set(_REMOVED_TOP_LEVEL_CONFIG_KEYS)
    assert len(asked) > 40 and asked <= set(deepspeed_keys.KNOWN[""])


# --- "auto"

GPT2 = {"model_type": "gpt2", "n_embd": 48}
LLAMA = {"model_type": "llama", "hidden_size": 64}
MODELS = [
    GPT2,
    LLAMA,
    {"model_type": "t5", "d_model": 32},
    {"model_type": "segformer", "hidden_sizes": [16, 48, 32]},
    {"model_type": "gemma3", "text_config": {"hidden_size": 96}},
    {"model_type": "clip"},  # its text_config has a hidden size
]


def automatic(stage):
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "warmup_min_lr": "auto",
                "warmup_max_lr": "auto",
                "warmup_num_steps": "auto",
                "total_num_steps": "auto",
            },
        },
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
        },
    }


def filled_by_transformers(config, model):
    """What transformers' Trainer makes of it, told --bf16 and otherwise its defaults."""
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    told = {one.name: one.default for one in fields(TrainingArguments)}
    told |= {"world_size": RANKS, "bf16": True, "gradient_accumulation_steps": 4}
    arguments = SimpleNamespace(**told, get_warmup_steps=lambda steps: 0)
    known = HfTrainerDeepSpeedConfig(config)
    known.trainer_config_process(arguments)
    known.trainer_config_finalize(arguments, SimpleNamespace(config=model), 1)
    return known.config, arguments


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape["model_type"])
def test_auto_is_filled_as_transformers_fills_it(shape, stage):
    from transformers import AutoConfig

    model = AutoConfig.for_model(**shape)
    theirs, arguments = filled_by_transformers(automatic(stage), model)
    sizes = {"micro_batch": arguments.per_device_train_batch_size, "accumulation": 4}
    mine = read(automatic(stage), ranks=RANKS, model=model, **sizes)
    other = read(theirs, ranks=RANKS)
    assert values(mine.deepspeed) == values(other.deepspeed)
    assert {**mine.config, "fp16": {}} == {**other.config, "fp16": {}} and mine.dtype == other.dtype == "bf16"
    assert mine.notes == ('bf16 is assumed: "enabled" is "auto", which the Trainer fills',)


def test_a_model_without_a_hidden_size_is_said_as_transformers_says_it():
    model = SimpleNamespace(width=64)
    with pytest.raises(ValueError, match="neither `hidden_size` nor `hidden_sizes`"):
        filled_by_transformers(automatic(2), model)
    with pytest.raises(
        BadConfiguration, match="needs the hidden size, and the model's configuration has none"
    ):
        read(automatic(2), model=model)


PRECISIONS = [
    ({"fp16": {"enabled": "auto"}}, "fp16"),
    ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, "bf16"),
    ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": True}}, "bf16"),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, "fp16"),
    ({"fp16": {"enabled": False}, "bf16": {"enabled": "auto"}}, "bf16"),
]


@pytest.mark.parametrize("config, dtype", PRECISIONS)
def test_the_precision_that_is_auto_is_assumed_and_said(config, dtype):
    known = read(config)
    settled = any(section["enabled"] is True for section in config.values())
    assert known.dtype == dtype and [note.partition(" ")[0] for note in known.notes] == [dtype] * (
        not settled
    )


# --- the formulas

NOT_COUNTED = [
    ({"fp16": {"enabled": True}}, "fp16.enabled"),
    ({"fp16": {"enabled": "auto"}}, "fp16.enabled"),
    ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "torch_autocast"),
    ({"communication_data_type": "fp32"}, "communication_data_type"),
    ({"optimizer": {"type": "Lamb", "params": {}}}, "optimizer.type lamb"),
    ({"optimizer": {"type": "AdamW", "params": {"amsgrad": True}}}, "optimizer.params.amsgrad"),
    ({"hybrid_engine": {"enabled": True}}, "hybrid_engine"),
    ({"expert_parallel": {"enabled": True}}, "expert_parallel"),
    ({"compile": {"deepcompile": True}}, "compile.deepcompile"),
    ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "bf16_master_weights_and_grads"),
    ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, "offload_optimizer"),
    ({"zero_optimization": {"stage": 3, "cpu_offload_param": True}}, "offload_param"),
    ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "zero_quantized_weights"),
    ({"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}}, "zero_quantized_gradients"),
    ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}}, "zero_hpz_partition_size"),
    (
        {"zero_optimization": {"stage": 3, "stage3_model_persistence_threshold": 9}},
        "model_persistence_threshold",
    ),
    ({"zero_optimization": {"stage": 1, "parameter_alignment": True}}, "parameter_alignment"),
    ({"zero_optimization": {"stage": 2, "compute_grad_norm": False}}, "compute_grad_norm"),
]


@pytest.mark.parametrize("config, word", NOT_COUNTED, ids=[word for _, word in NOT_COUNTED])
def test_a_key_that_the_formulas_do_not_count_is_named(config, word):
    config = {**BF16, "zero_optimization": {"stage": 2}} | config
    config |= {"bf16": {}} if "fp16" in config else {}
    with pytest.raises(ValueError, match=f"do not count.* {word}|do not count.*{word}"):
        theory.deepspeed_bytes([10], config)


@pytest.mark.parametrize(
    "config",
    [
        {"hybrid_engine": {"enabled": False}, "expert_parallel": {"enabled": False}},
        {"zero_optimization": {"stage": 2, "zero_quantized_weights": True, "zero_hpz_partition_size": 8}},
        {
            "communication_data_type": "bf16",
            "optimizer": {"type": "Adam"},
            "torch_autocast": {"enabled": False},
        },
    ],
)
def test_a_part_that_is_not_used_is_as_if_absent(config):
    plain = {**BF16, "zero_optimization": {"stage": 2}}
    assert theory.deepspeed_bytes([10], plain | config) == theory.deepspeed_bytes([10], plain)


def test_a_key_that_deepspeed_does_not_know_is_warned_of():
    with pytest.warns(UserWarning, match="knows no zero_optimisation"):
        theory.deepspeed_bytes([10], {**BF16, "zero_optimisation": {"stage": 2}})


def test_every_field_of_zero_is_counted_named_or_measured_to_change_nothing():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from tests.theory.test_model_states import NO_BYTES

    old = {name for name in DeepSpeedZeroConfig.model_fields if name.startswith("cpu_offload")}
    known = {*zero_config.COUNTED, *zero_config.NOT_COUNTED, "offload_optimizer", "offload_param", *old}
    measured = {name for keys in NO_BYTES.values() for name in keys}
    measured = {name.removeprefix("stage3_") for name in measured}
    files = {
        "load_from_fp32_weights",
        "elastic_checkpoint",
        "pipeline_loading_checkpoint",
    }  # checkpoints alone
    files |= {"gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"}
    other = {
        "save_muon_momentum_buffer_in_memory",
        "legacy_stage1",
    }  # of another optimizer; refused by DeepSpeed
    assert set(DeepSpeedZeroConfig.model_fields) - known - measured - files == other


@pytest.mark.parametrize("config", [{"train_batch_size": 256}, {"train_batch_size": 256.0}])
def test_step_seconds_reads_the_batch_as_deepspeed_does(config):
    machine = theory.MachineConstants(
        matrix={"bf16": {4096: 1e14}}, memory=1e12, launch=1e-6,
        latency=1e-5, bandwidth=1e10,
    )  # fmt: skip
    config = config | {**BF16, "zero_optimization": {"stage": 2}}
    asked = dict(ranks=4, batch=64, accumulation=1)
    assert theory.step_seconds(models.TINY, machine, config=config, ranks=4) == theory.step_seconds(
        models.TINY, machine, config=theory.ZeroConfig(stage=2), **asked
    )
