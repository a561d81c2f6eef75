"""What lesson 06 says of DeepSpeed's pipelines."""

import pytest
from helpers import launch, pipelines
from helpers.tools.launcher.failures import RankError

GONE = "{} is no longer so: correct lesson 06"

pytestmark = pytest.mark.ranks


def usual_loop():
    engine = pipelines.pipeline(1, pipelines.configuration())
    ids, _ = next(pipelines.micro_batches(engine, 0))
    engine(ids)


def clipping():
    """Of an engine whose configuration says nothing of it."""
    config = pipelines.configuration()
    del config["gradient_clipping"]
    return pipelines.pipeline(1, config).gradient_clipping()


def test_an_engine_of_a_pipeline_refuses_a_forward_pass():
    with pytest.raises(RankError, match=r"Only train_batch\(\) is accessible in pipeline mode"):
        launch(usual_loop, ranks=1, device="cpu")


def test_without_the_key_gradients_are_clipped_at_1():
    assert launch(clipping, ranks=1, device="cpu")[0] == 1.0, GONE.format("Clipping without a key")
