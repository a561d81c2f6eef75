"""Lesson 18's `save_safely`: whatever the stage and precision, `latest` never names a checkpoint that a rank
died in, nor half of one."""

import os
import signal
from pathlib import Path

import pytest
import torch
from helpers import launch, models
from helpers.tools.launcher.failures import RankError
from tests.exercises.course import solutions
from tests.support import configuration

CASES = [(stage, bf16) for stage in range(4) for bf16 in (False, True)]


def engine_of(stage, bf16):
    import deepspeed

    config = configuration(stage, bf16=bf16)
    model = models.build(models.GPT, config=config)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def die_in_the_second_save(folder, stage, bf16, save):
    """In a rank: two saves; in the second the last rank that writes anything is killed, with half of its last
    file written."""
    engine = engine_of(stage, bf16)
    writer = engine.checkpoint_engine

    def half(state_dict, path):
        torch.save(state_dict, path)
        if stage and "optim_states" not in path:
            return
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    for number in (1, 2):
        if number == 2 and engine.global_rank == (1 if stage else 0):  # at stage 0 rank 0 alone writes
            writer.save = half
        save(engine, folder, f"after-{number}")


def by_deepspeed(engine, folder, tag):
    """With `latest` as DeepSpeed writes it; who dies waits until it is there."""
    import time

    if engine.global_rank and Path(folder, "latest").exists():
        half = engine.checkpoint_engine.save

        def late(state_dict, path):
            until = time.monotonic() + 20
            while (
                "optim_states" in path
                and Path(folder, "latest").read_text() != tag
                and time.monotonic() < until
            ):
                time.sleep(0.02)
            half(state_dict, path)

        engine.checkpoint_engine.save = late
    engine.save_checkpoint(folder, tag=tag)


def load_all(folders):
    """In a rank: the checkpoint that DeepSpeed loads by itself, for each case."""
    return [
        Path(engine_of(*case).load_checkpoint(folder)[0]).parent.name for case, folder in zip(CASES, folders)
    ]


@pytest.mark.ranks
def test_a_rank_that_dies_in_a_save_leaves_a_checkpoint_that_loads(tmp_path):
    save = solutions()["18-save_safely"]
    folders = [str(tmp_path / f"{stage}-{bf16}") for stage, bf16 in CASES]
    for (stage, bf16), folder in zip(CASES, folders):
        with pytest.raises(RankError, match="was killed by SIGKILL"):
            launch(
                die_in_the_second_save,
                2,
                {"folder": folder, "stage": stage, "bf16": bf16, "save": save},
                device="cpu",
            )
        assert Path(folder, "latest").read_text() == "after-1" and any(Path(folder, "after-2").iterdir())
    assert launch(load_all, 2, {"folders": folders}, device="cpu") == [["after-1"] * len(CASES)] * 2


@pytest.mark.ranks
@pytest.mark.parametrize("stage, bf16", [(1, False), (2, True)])
def test_deepspeed_alone_names_the_torn_one(tmp_path, stage, bf16):
    """At stages 1 and 2; at stage 3 its ranks gather small parameters again after their files, before rank 0
    writes `latest`."""
    with pytest.raises(RankError, match="was killed by SIGKILL"):
        launch(
            die_in_the_second_save,
            2,
            {"folder": str(tmp_path), "stage": stage, "bf16": bf16, "save": by_deepspeed},
            device="cpu",
        )
    assert Path(tmp_path, "latest").read_text() == "after-2"
