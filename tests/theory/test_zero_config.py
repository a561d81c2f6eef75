"""A DeepSpeed configuration translated for the formulas, once."""

import pytest
from helpers import theory
from helpers.tools.theory import ZeroConfig

ELEMENTS = [300, 50, 7]


def test_an_empty_configuration_has_deepspeeds_defaults():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    found, defaults = ZeroConfig.of({}), DeepSpeedZeroConfig()
    assert found == ZeroConfig(dtype="fp32")
    assert found.stage == defaults.stage and found.reduce_bucket_size == defaults.reduce_bucket_size
    assert (
        found.persistence_threshold == defaults.param_persistence_threshold
        and found.sub_group_size == defaults.sub_group_size
    )
    assert found.contiguous_gradients == defaults.contiguous_gradients


def test_every_key_is_translated():
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": 2e8,
            "overlap_comm": True,
            "contiguous_gradients": False,
            "stage3_param_persistence_threshold": 7,
            "sub_group_size": 1e6,
            "allgather_partitions": True,
        },
    }
    assert ZeroConfig.of(config) == ZeroConfig(
        stage=2,
        grad_accum_dtype="fp32",
        reduce_bucket_size=200_000_000,
        overlap_comm=True,
        contiguous_gradients=False,
        persistence_threshold=7,
        sub_group_size=1_000_000,
    )
    assert isinstance(ZeroConfig.of(config).reduce_bucket_size, int)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_either_form_gives_the_same_bytes(stage):
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000}}
    same = ZeroConfig(stage=stage, reduce_bucket_size=1000)
    assert theory.deepspeed_bytes(ELEMENTS, config, ranks=2, rank=1) == theory.deepspeed_bytes(
        ELEMENTS, same, ranks=2, rank=1
    )
    assert theory.step_peak_bytes(ELEMENTS, config, ranks=2, rank=1) == theory.step_peak_bytes(
        ELEMENTS, same, ranks=2, rank=1
    )


def test_it_takes_no_positions():
    with pytest.raises(TypeError):
        ZeroConfig(1)
    with pytest.raises(TypeError):
        theory.deepspeed_bytes(ELEMENTS, ZeroConfig(), 2)


@pytest.mark.parametrize(
    "config, word",
    [
        ({"zero_optimization": {"stage": 4}}, "refuses this: stage = 4"),
        ({"fp16": {"enabled": True}}, "fp16"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, "offload_optimizer"),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "zero_hpz_partition_size"),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, "accumulate"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "accumulate"),
    ],
)
def test_what_the_formulas_do_not_cover_is_named(config, word):
    with pytest.raises(ValueError, match=word):
        ZeroConfig.of(config)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "fp32"},
        {"stage": 1, "grad_accum_dtype": "fp32"},
        {"stage": 1, "contiguous_gradients": False},
    ],
)
def test_a_step_that_the_peaks_formula_does_not_cover_is_named(options):
    with pytest.raises(ValueError, match="step_peak_bytes covers"):
        theory.step_peak_bytes(ELEMENTS, ZeroConfig(**options))


def test_fp32_and_offload_to_nowhere_are_fine():
    assert ZeroConfig.of({"zero_optimization": {"offload_optimizer": {"device": "none"}}}).dtype == "fp32"
