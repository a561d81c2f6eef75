"""Lesson 18's builds: every mistake is seen and told from the others; what is no list or dict is told what to
return."""

import random

import pytest
from helpers import launch
from helpers.course.exercises import clusters as lesson_18
from helpers.course.exercises.comparing import same
from helpers.course.exercises.in_ranks import tried_mistake
from tests.exercises.course import solutions

BUILDS = ("cable_bytes", "restart", "save_safely")


def try_each(functions):
    """In a rank: what each build's check finds with each of its functions, for two seeds."""
    import deepspeed

    deepspeed.init_distributed()
    found = {}
    for build in BUILDS:
        trial = getattr(lesson_18, build).trial
        found[build] = [
            [tried_mistake(trial, function, seed=seed) for seed in (7, 8)] for function in functions[build]
        ]
    return found


@pytest.mark.ranks
def test_every_mistake_is_seen_and_told_from_the_others():
    known = solutions()
    functions = {}
    for build in BUILDS:
        right = known[f"18-{build}"]
        functions[build] = [right, *getattr(lesson_18, build).mistaken().values()]
    by_rank = launch(try_each, ranks=2, arguments={"functions": functions}, device="cpu")
    for build in BUILDS:
        words = ["right", *getattr(lesson_18, build).mistakes]
        for seed in (0, 1):
            found = [[mine[build][at][seed] for mine in by_rank] for at in range(len(words))]
            assert all(one is not None for values in found for one in values)
            for at, values in enumerate(found):
                twins = [
                    words[other]
                    for other in range(at)
                    if all(same(one, two, 1e-5) for one, two in zip(values, found[other]))
                ]
                assert not twins, (words[at], twins)


def test_every_wrong_formula_of_the_interval_is_told():
    exercise = lesson_18.save_interval
    for words, wrong in exercise.mistakes.items():
        assert words in exercise.verdict(
            lambda save, unit_hours, units, wrong=wrong: wrong(save, unit_hours, units)
        ), words


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
