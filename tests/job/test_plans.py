"""The job's plans: what is printed is what is rehearsed and stored, and the stored bytes are those of
arithmetic and of recorded runs."""

import pytest
from helpers import job, job_bars, step_timeline
from helpers.course.job.plans import PLANS
from helpers.course.job.rehearsals import installed
from helpers.course.job.stored import FOLDER, highest, path, stored
from helpers.course.plots.budget import LOOKS
from helpers.tools.rehearsal.naming import OTHER, TRANSIENT
from helpers.tools.rehearsal.versions import TESTED
from helpers.tools.theory import ideal_bytes

PSI = 8_030_261_248
DEFAULTS = {"overlap_comm"}  # of a stage, which reading a configuration writes out


def settings(config):
    """The keys of a configuration that have a value of their own."""
    return sum(settings(value) if isinstance(value, dict) else 1 for value in config.values())


def differing(printed, given, place=()):
    """Where two configurations differ: [(keys, printed, given)]."""
    found = []
    for key in {*printed, *given} - DEFAULTS:
        one, other = printed.get(key), given.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += differing(one, other, (*place, key))
        elif one != other:
            found.append(((*place, key), one, other))
    return found


@pytest.mark.parametrize("name", PLANS)
def test_what_is_printed_is_what_is_rehearsed(name):
    """But for micro-batches: what a third one holds is what the second did."""
    plan = job.plan(name)
    accumulation = plan.config["gradient_accumulation_steps"]
    given = plan.question().config | {"gradient_accumulation_steps": accumulation}
    assert differing(plan.config, given) == []
    is_printed = not any(words in name for words in ("overlap", "at once", "to the owner"))
    assert settings(plan.config) <= (8 if is_printed else 10)
    due = 8 if name.startswith("2 GPUs") else 72 if "3 sequences" in name else job.SEQUENCES
    assert plan.sequences == due


def test_a_configuration_that_differs_is_seen():
    plan = job.plan("stage 1")
    fused = plan.question().config | {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "fused": True}}}
    assert (("optimizer", "params", "fused"), None, True) in differing(plan.config, fused)


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_is_stored_as_it_is(name):
    content = stored(name)
    assert content["plan"] == name and content["label"] == "rehearsed"
    plan = job.plan(name)
    now = [plan.config, plan.model, plan.gpus, plan.card, plan.checkpointing, plan.lora, plan.qlora]
    then = [content[key] for key in ("config", "model", "gpus", "card", "checkpointing", "lora", "qlora")]
    assert now == then, f"the plan has changed since it was rehearsed: make job PLAN={name!r}"


@pytest.mark.parametrize("name", PLANS)
def test_all_were_made_with_the_versions_that_the_project_was_tested_with(name):
    assert stored(name)["versions"] == TESTED, "other versions may hold other bytes: make job"


def test_no_file_is_left_of_a_plan_that_is_gone():
    assert set(FOLDER.glob("*.json")) == set(map(path, PLANS))


@pytest.mark.parametrize("name", PLANS)
def test_next_to_nothing_at_the_highest_moment_has_no_name(name):
    (phase, parts), least = highest(name), 0.006 if "QLoRA" in name else 1e-6  # scales of weights in 4 bits
    assert set(parts) <= set(LOOKS) and phase != "building"
    assert parts.get(OTHER, 0) < least * sum(parts.values())
    assert sum(parts.values()) == job.peak(name) <= stored(name)["allocated"] <= stored(name)["reserved"][1]


def test_every_temporary_has_a_look():
    assert set(TRANSIENT) <= set(LOOKS)


@pytest.mark.parametrize("gpus, stage, name", [(8, stage, f"stage {stage}") for stage in (0, 1, 3)])
def test_states_are_those_of_the_formula(gpus, stage, name):
    """Within padding, and with stage 3 what is kept whole because it is small."""
    formula, states = ideal_bytes(PSI, gpus, stage), job.states(name)
    assert {one: states[one] for one in formula} == pytest.approx(formula, rel=1e-3)


def test_fp32_sums_add_four_bytes_per_parameter_at_stage_1():
    added = job.states("stage 1, fp32 sums")["gradients"] - job.states("stage 1")["gradients"]
    assert added == 4 * PSI


def test_models_have_the_parameters_of_their_names():
    assert stored("stage 1")["elements"] == PSI
    assert stored("70 B, stage 3, 64 GPUs")["elements"] == 70_553_706_496


@pytest.mark.parametrize(
    "name, words",
    [("stage1", "did you mean 'stage 1'"), ("nothing like it", "there are 1 GPU; 1 GPU, fused")],
)
def test_an_unknown_plan_is_named(name, words):
    for ask in (job.plan, job.peak, job.states, lambda name: job_bars([name], "")):
        with pytest.raises(LookupError, match=words):
            ask(name)


@pytest.mark.ranks
def test_a_plan_rehearsed_anew_is_what_is_stored():
    """A cheap one, whole."""
    import json

    from helpers.course.job.rehearsals import made

    name = "stage 0"
    if installed() != stored(name)["versions"]:
        then, here = stored(name)["versions"], installed()
        pytest.skip(f"rehearsed with {then}, here are {here}: `make job` rehearses with these")
    assert json.loads(json.dumps(made(name))) == stored(name), f"make job PLAN={name!r}"


@pytest.mark.parametrize("name", [name for name in PLANS if "unknown" not in stored(name)["seconds"]])
def test_messages_of_a_step_add_up_over_its_passes(name):
    for step in job.step_times(name):
        sent = [seconds for taken in step.passes.values() for seconds in taken.sent.values()]
        assert all(seconds >= 0 for seconds in sent)
        assert sum(sent) == pytest.approx(sum(taken.messages for taken in step.passes.values()))


def test_a_stored_step_is_drawn_over_time():
    fastest, slowest = job.step_times("stage 3")
    plot = step_timeline({"at the fastest": fastest, "at the slowest": slowest}, "Title")
    assert fastest.total < slowest.total and fastest.hidden > 0 == slowest.hidden
    assert f"at the fastest: {fastest.total:.3g} s, messages exposed" in plot.sentence
    with pytest.raises(LookupError, match="no seconds are known of the plan 'LoRA, 1 GPU of 24 GB': "):
        job.step_times("LoRA, 1 GPU of 24 GB")
