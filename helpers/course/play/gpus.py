"""A step of the job by data parallelism, to play with: GPUs, network, when gradients are sent, batch."""

from __future__ import annotations

from helpers.course.job.more_gpus import NVLINK, replicated_step
from helpers.course.play.compared import Bars, Goals, Numbers
from helpers.course.play.compared import played as of_bars
from helpers.course.play.grids import Choice
from helpers.course.play.played import Played
from helpers.course.plots.replicas import MESSAGE, WAITED, WORK

NETWORKS = {"8 cards of 50 GB/s": NVLINK, "1 card of 25 GB/s": 25e9, "1 card of 12.5 GB/s": 12.5e9}
CHOICES = {
    "gpus": Choice("GPUs", [8, 16, 32, 64], 64),
    "network": Choice("each host has", list(NETWORKS), "1 card of 25 GB/s"),
    "way": Choice("sent", ["at the end", "in buckets", "in every micro-batch"], "at the end"),
    "sequences": Choice("sequences of a step", [64, 128, 256], 64),
}
WORDS = (
    "Work {work} s, update {update} s, message exposed {exposed} s and hidden {hidden} s: {total} s. One host"
    " takes {base} s for as many sequences, so this is {times} times as fast."
)
GOALS: Goals = {
    "With 64 GPUs and one card of 25 GB/s, be more than 6 times as fast as one host.": lambda ways, times: (
        ways["gpus"] == 64 and ways["network"] == "1 card of 25 GB/s" and times > 6
    ),
    "Be more than 7.4 times as fast.": lambda ways, times: times > 7.4,
    "Make 16 GPUs slower than the 8 of one host.": lambda ways, times: ways["gpus"] == 16 and times < 1,
}


def found(gpus: int, network: str, way: str, sequences: int) -> Numbers:
    return replicated_step(gpus, NETWORKS[network], way, sequences)


def of_one_host(sequences: int, **_: object) -> Numbers:
    return replicated_step(8, NVLINK, "at the end", sequences)


BARS = Bars(
    found,
    of_one_host,
    called="one host",
    unit="s",
    parts={"work": WORK["backward"], "exposed": MESSAGE, "update": WORK["update"]},
    below=("hidden", WAITED),
    labels={"exposed": "message, exposed", "hidden": "message, hidden"},
    title="A step of the job, computed;",
    words=WORDS,
    goals=GOALS,
)


def replicas(*names: str, **start: object) -> Played:
    """The seconds of a step on more GPUs, beside those of one host; arguments as in `compared.played`."""
    return of_bars(BARS, CHOICES, names, start)
