"""DeepSpeed's autotuner: what was recorded of it, and how the recorder reads what it leaves."""

import json

from helpers import models, recorded, theory
from helpers.course.recording import autotuning
from tests.recording.test_recorded import over

ATTEMPTS = recorded.runs("autotuning")


@over(ATTEMPTS)
def test_every_candidate_was_measured_and_the_fastest_chosen(run):
    (report,) = run.reports
    tried = report["tried"]
    asked = run.configuration
    candidates = [
        (stage, micro)
        for stage in asked["zero_optimization"]["stage"]
        for micro in asked["train_micro_batch_size_per_gpu"]
    ]
    assert [(one["zero_optimization"]["stage"], one["micro_batch"]) for one in tried] == candidates
    assert len({one["micro_batch"] * one["accumulation"] for one in tried}) == 1
    fastest = max(tried, key=lambda one: one["throughput"])
    best = report["best"]
    assert (best["zero_optimization"], best["train_micro_batch_size_per_gpu"]) == (
        fastest["zero_optimization"],
        fastest["micro_batch"],
    )
    assert report["model"]["num_params"] == theory.gpt_parameters(models.TINY)


def test_the_autotuner_keeps_of_the_section_of_zero_the_stage_alone():
    asked = autotuning.configuration(1, 1)["zero_optimization"]
    assert asked.keys() > {"stage"}
    assert all(
        one["zero_optimization"].keys() == {"stage"} for run in ATTEMPTS for one in run.reports[0]["tried"]
    )


def test_a_candidate_without_a_number_is_found_too(tmp_path):
    results = tmp_path / "autotuning_results"
    config = {
        "zero_optimization": {"stage": 1},
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
    }
    for name in ("profile_model_info", "z1_failed"):
        (results / name).mkdir(parents=True)
        (results / name / "exp.json").write_text(json.dumps({"name": name, "ds_config": config}))
    (results / "profile_model_info" / "model_info.json").write_text('{"num_params": 7}')
    (results / "ds_config_optimal.json").write_text("{}")
    failed = {
        "name": "z1_failed",
        "zero_optimization": {"stage": 1},
        "micro_batch": 8,
        "accumulation": 2,
        "throughput": None,
    }
    assert autotuning.found(tmp_path) == {"tried": [failed], "model": {"num_params": 7}, "best": {}}
