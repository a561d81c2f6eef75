"""Lesson 18's builds: what is no list or dict is told what to return."""

import random

import pytest
from helpers.course.exercises import clusters as lesson_18

BUILDS = ("cable_bytes", "restart", "save_safely")


@pytest.mark.parametrize(
    "trial, words",
    [("_cable_bytes", "return a list with a number for each machine"), ("_restart", "return a dict with ")],
)
def test_what_is_something_else_is_told_what_to_return(trial, words, monkeypatch):
    monkeypatch.setattr(lesson_18, "random_of_rank", random.Random)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    for nothing, named in ((None, "nothing"), (1.5, "a float")):
        with pytest.raises(TypeError, match=f"{words}.*{named}"):
            getattr(lesson_18, trial)(lambda *given, nothing=nothing: nothing, 1)


def test_settings_that_lack_a_name_say_which(monkeypatch):
    monkeypatch.setattr(lesson_18, "random_of_rank", random.Random)
    with pytest.raises(KeyError, match="accumulation is missing"):
        lesson_18._restart(lambda batch, largest, left: {"ranks": 1, "micro_batch": 1}, 1)
