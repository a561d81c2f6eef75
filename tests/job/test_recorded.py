"""The job on four H100, as it was recorded, beside the rehearsals of its plans."""

import pytest
from helpers import job, recorded

RUNS = [pytest.param(run, id=run.arguments["plan"]) for run in recorded.runs("job")]
STEPS = 2


def of_step(phases, number):
    """The phases of a step: building comes before the first one."""
    each = (len(phases) - 1) // STEPS
    return phases[1 + number * each :][:each]


@pytest.mark.parametrize("run", RUNS)
def test_a_plan_allocates_on_gpus_what_was_rehearsed(run):
    foretold = job.stored(run.arguments["plan"])
    assert run.configuration == foretold["config"] == job.plan(run.arguments["plan"]).config
    if run.error:
        assert run.out_of_memory and foretold["how"] == "no"
        return
    assert foretold["how"] == "fits"
    found = max(phase["peak"]["allocated"] for phases in run.reports for phase in phases)
    assert found == pytest.approx(foretold["allocated"], rel=2e-4)


@pytest.mark.parametrize("run", [run for run in RUNS if not run.values[0].error])
def test_a_step_takes_as_long_as_was_foretold(run):
    fastest, slowest = (
        sum(job.stored(run.arguments["plan"])["seconds"][end].values()) for end in ("fastest", "slowest")
    )
    for phases in run.reports:
        assert fastest <= sum(phase["seconds"] for phase in of_step(phases, 1)) <= slowest
