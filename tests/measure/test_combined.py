"""Kinds of parallelism beside stages of ZeRO: which have the losses of four replicas, and which DeepSpeed
refuses."""

import pytest
from helpers import launch
from helpers.course.runs import combined


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="way must be one of data, tensor, pipeline, sequence; not 'expert'"):
        combined.configuration("expert", 0)


@pytest.mark.ranks
def test_every_way_has_the_losses_of_four_replicas_and_a_pipeline_refuses_stage_2():
    found = {}
    for way in combined.WAYS:
        reports = launch(combined.losses, ranks=4, arguments={"way": way, "stages": (1, 2)}, device="cpu")
        if way == "pipeline":
            assert all("incompatible with pipeline parallelism" in report[2] for report in reports)
        found[way] = [sum(step) / 4 for step in zip(*(report[1] for report in reports))]
    assert found["data"][1] < found["data"][0]
    for losses in found.values():
        assert losses == pytest.approx(found["data"], abs=1e-4)
