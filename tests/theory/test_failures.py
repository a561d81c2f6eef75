"""How often a job fails and should save, held against published runs, a simulation and the best interval
itself."""

import math
import random

import pytest
from helpers import theory


def test_a_job_fails_as_often_as_all_of_its_units_together():
    assert theory.hours_between_failures(50_000, 1000) == 50
    meta = (
        1000 / 6.5 * 24
    )  # hours of a node: 6.50 failures per 1,000 node-days (arXiv 2410.21680, section III)
    assert theory.hours_between_failures(meta, 16384 // 8) == pytest.approx(
        1.8, abs=0.01
    )  # hours, as projected there


def test_the_best_interval_is_where_the_least_is_lost():
    for save, mean in ((1, 100), (5, 100), (0.1, 24)):
        intervals = [mean * step / 2000 for step in range(1, 4000)]
        best = min(intervals, key=lambda interval: theory.lost_share(interval, save, 0.5, mean))
        assert theory.daly_interval(save, mean) == pytest.approx(best, rel=0.01, abs=mean / 2000)
        assert abs(theory.young_interval(save, mean) - save / 2 - best) < 0.1 * best
    assert theory.daly_interval(200, 100) == theory.daly_interval(300, 100) == 100


def simulated(interval, save, restart, mean, segments, seed):
    """The lost part of a job that works until the save after each segment has been completed."""
    dice, time = random.Random(seed), 0.0
    for _ in range(segments):
        pending = 0.0
        while (failure := dice.expovariate(1 / mean)) < pending + interval + save:
            time, pending = time + failure, restart
        time += pending + interval + save
    return 1 - segments * interval / time


@pytest.mark.parametrize("interval, save, restart, mean", [(10, 1, 2, 50), (3, 0.5, 1, 200), (40, 4, 10, 30)])
def test_what_is_lost_is_what_a_simulation_loses(interval, save, restart, mean):
    lost = simulated(interval, save, restart, mean, 30_000, 7)
    assert theory.lost_share(interval, save, restart, mean) == pytest.approx(lost, abs=0.01)


def test_to_first_order_it_is_saving_and_half_an_interval_and_the_restart_of_each_failure():
    assert theory.lost_share(1, 0.01, 0.1, 1000) == pytest.approx(0.01 + (0.5 + 0.1) / 1000, rel=0.02)


def test_spares_are_missing_as_often_as_dice_say():
    assert theory.spares_missing_share(2, 0) == pytest.approx(1 - math.exp(-2))
    dice, clock, ends, short, days = random.Random(0), 0.0, [], 0, 20_000
    for day in range(days):  # half of a unit fails a day, each repair takes four: two are down on average
        while clock < day:
            clock += dice.expovariate(0.5)
            ends.append((clock, clock + 4))
        ends = [(start, end) for start, end in ends if end > day]
        short += sum(start <= day for start, end in ends) > 3
    assert short / days == pytest.approx(theory.spares_missing_share(2, 3), abs=0.01)
    with pytest.raises(ValueError, match="spares must be at least 0"):
        theory.spares_missing_share(1, -1)


def test_numbers_that_mean_nothing_are_refused():
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="between_failures must be positive"):
            theory.young_interval(1, wrong)
        with pytest.raises(ValueError, match="units must be positive"):
            theory.hours_between_failures(1, wrong)
    with pytest.raises(ValueError, match="must not be negative"):
        theory.lost_share(1, -1, 0, 1)


@pytest.mark.parametrize("spares", [0, 1, 170, 171, 1000, 100_000])
def test_spares_are_missing_beyond_what_factorials_can_say(spares):
    """As many failures as spares on average: about half of the time; twice as many: never; half: always."""
    mean = max(spares, 1)
    assert theory.spares_missing_share(mean, spares) == pytest.approx(
        1 - math.exp(-1) if spares == 0 else 0.5, abs=0.24 if spares == 1 else 0.04
    )
    if spares >= 170:
        assert 0 <= theory.spares_missing_share(spares / 2, spares) < 1e-15
        assert theory.spares_missing_share(spares * 2, spares) == pytest.approx(1)


def test_the_share_is_that_of_whole_numbers():
    """Beside exact fractions, at either end: nearly never, and nearly always."""
    from fractions import Fraction

    for mean, spares in ((1, 12), (2, 30), (50, 171), (300, 171), (Fraction(1, 1000), 3)):
        below = sum(Fraction(mean) ** down / math.factorial(down) for down in range(spares + 1))
        terms, down, rest = (
            Fraction(mean) ** (spares + 1) / math.factorial(spares + 1),
            spares + 1,
            Fraction(0),
        )
        while down < spares + 2000 and terms > Fraction(1, 10**400):
            rest, down = rest + terms, down + 1
            terms *= Fraction(mean) / down
        assert theory.spares_missing_share(float(mean), spares) == pytest.approx(
            float(rest / (rest + below)), rel=1e-9
        )


@pytest.mark.parametrize(
    "mean, spares, share", [(1e-300, 0, 0), (1e9, 0, 1), (1e-9, 10**6, 0), (1e6, 10**5, 1), (2000, 0, 1)]
)
def test_shares_stay_between_0_and_1(mean, spares, share):
    assert theory.spares_missing_share(mean, spares) == pytest.approx(share)
    assert 0 <= theory.spares_missing_share(mean, spares) <= 1


@pytest.mark.parametrize("spares", [-1, 1.5, None])
def test_spares_are_whole(spares):
    with pytest.raises(ValueError if spares == -1 else TypeError, match="spares must be at least 0"):
        theory.spares_missing_share(1, spares)
