"""Machines fail: how often among many, and how often to save.

A job on many units ends with the first of them that fails.  Failures come independently, at a constant rate,
with the mean time between them M.  Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17 (1974); Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", Future Generation Computer Systems 22 (2006).  All times of a formula are in one unit: `save`,
for which training stands still at each save, and `between_failures`, M of the job.
"""

from __future__ import annotations

import math

from ..whole import not_negative, positive, whole

NEGLIGIBLE = 1e-18  # of a sum: further terms change nothing


def hours_between_failures(unit_hours: float, units: int) -> float:
    """unit_hours / units: mean hours between failures of a job on GPUs or hosts, any of which ends it."""
    positive(unit_hours=unit_hours, units=units)
    return unit_hours / units


def young_interval(save: float, between_failures: float) -> float:
    """The best time of work between two saves, to first order: sqrt(2 save M) (Young 1974, equation 12)."""
    positive(save=save, between_failures=between_failures)
    return math.sqrt(2 * save * between_failures)


def daly_interval(save: float, between_failures: float) -> float:
    """The same to a higher order (Daly 2006, equation 37): for save < 2 M, sqrt(2 save M) (1 + x / 3 + x^2 /
    9) - save with x = sqrt(save / (2 M)); else M."""
    positive(save=save, between_failures=between_failures)
    if save >= 2 * between_failures:
        return between_failures
    x = math.sqrt(save / (2 * between_failures))
    return math.sqrt(2 * save * between_failures) * (1 + x / 3 + x * x / 9) - save


def lost_share(interval: float, save: float, restart: float, between_failures: float) -> float:
    """The part of a long job's time that is not lasting work: saving, work done twice, and restarting.

    1 - interval / (M e^(restart / M) (e^((interval + save) / M) - 1)), from the time to solution of Daly
    2006, equation 20.  About save / interval + (interval / 2 + restart) / M where all of them are short
    beside M; 1 where next to no interval ever ends.  An interval is of work between two saves, a restart
    from a failure until training goes on, with loading.
    """
    positive(interval=interval, between_failures=between_failures)
    not_negative(save=save, restart=restart)
    mean = between_failures
    try:
        return 1 - interval / (mean * math.exp(restart / mean) * math.expm1((interval + save) / mean))
    except OverflowError:
        return 1.0


def spares_missing_share(mean_down: float, spares: int) -> float:
    """The part of the time in which more units are down than there are spares: P(X > spares).

    X is Poisson-distributed whatever the repairs' lengths are, with the mean `mean_down`, failures per day x
    days of a repair (Palm's theorem; Feller, An Introduction to Probability Theory, volume 1, section VI.5,
    has the distribution).  Summed from the spares on, in the direction in which terms fall.
    """
    positive(mean_down=mean_down)
    whole(spares, "spares", 0)
    if math.isinf(mean_down):
        return 1.0
    upwards = mean_down < spares + 1  # terms above the spares fall: add those up
    down, total = (spares + 1 if upwards else spares), 0.0
    term = math.exp(down * math.log(mean_down) - mean_down - math.lgamma(down + 1))
    while term > NEGLIGIBLE * total:
        total += term
        if upwards:
            down += 1
            term *= mean_down / down
        else:  # those up to the spares fall towards 0
            term *= down / mean_down
            down -= 1
    return min(total, 1.0) if upwards else max(1 - total, 0.0)
