"""What overlap could hide of a gradient's messages, and what it saved on recorded GPUs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from helpers.course.recorded.reading import Run, runs

BACKWARD = 1  # in the seconds of a step of the experiment "overlap"
ZERO = {"stage": 1}
WAYS = {"at the end": "cost at the end", "in buckets": "cost in buckets", "DDP": "cost by DDP"}
CASES = (  # who trains, link, tokens of a micro-batch, micro-batches
    ("torch's DDP", "NVLink", 2048, 1),
    ("torch's DDP", "sockets", 16384, 1),
    ("DeepSpeed's ZeRO-1", "NVLink", 1024, 1),
    ("DeepSpeed's ZeRO-1", "NVLink", 1024, 8),
    ("DeepSpeed's ZeRO-1", "sockets", 4096, 1),
)


def hidden() -> list[dict[str, object]]:
    """Rows for a table, in ms: the gradients' message as it was recorded with nothing beside it, the last
    micro-batch's backward pass as it was recorded without messages, the smaller of the two, and what
    overlap saved.

    DDP's steps stand beside those of one message at the end, DeepSpeed's with `overlap_comm` beside those
    without.
    """
    rows = []
    for who, link, tokens, micro_batches in CASES:
        message = _alone(link)
        last = _backward("no messages", _link_of(tokens), tokens)
        if who.startswith("torch"):
            late, early = (_backward(how, link, tokens) for how in ("at the end", "DDP"))
        else:
            case = ZERO | {"link": link, "micro_batches": micro_batches}
            late, early = (_step(change=f"overlap {key}", **case) for key in ("off", "on"))
        at_most = min(message, last)
        of_last = {"last backward pass": last, "hides at most": at_most, "saved": late - early}
        named = {f"{name}, ms": f"{1e3 * found:,.1f}" for name, found in of_last.items()}
        case = {"who": who, "link": link, "tokens": f"{tokens:,}", "micro-batches": micro_batches}
        rows.append(case | {"message alone, ms": f"{1e3 * message:,.1f}"} | named)
    return rows


@dataclass(frozen=True)
class Cost:
    """What the gradients' messages cost one recorded step of replicas.

    Attributes:
        link: "NVLink", or "sockets".
        tokens: of a rank's micro-batch.
        backward: seconds of the same backward pass without any message.
        message: seconds of the gradients' all-reduce, foretold.
        cost: seconds by which the pass was longer, until all gradients were there.
    """

    link: str
    tokens: int
    backward: float
    message: float
    cost: float

    def is_within(self, exposed: Callable[[float, float], tuple[float, float]]) -> bool:
        """Whether the cost lies in the range that an answer gives, within a tenth."""
        least, most = exposed(self.backward, self.message)
        return 0.9 * least <= self.cost <= 1.1 * most


def costs_of_messages(how: str) -> list[Cost]:
    """Of every recorded micro-batch; `how` messages were sent: "at the end", "in buckets" or "DDP"."""
    found = []
    for run in runs("overlap", how=how):
        link = run.arguments["link"]
        for tokens in run.reports[0]["tokens"]:
            alone = _backward("no messages", link, tokens)
            cost = _backward(how, link, tokens) - alone
            found.append(Cost(link, tokens, alone, run.foretold["message"], cost))
    return found


def costs(exposed: Callable[[float, float], tuple[float, float]]) -> list[dict[str, str]]:
    """Rows for a table, in ms, of all that was recorded: what an answer promises at least and at most, what
    the gradients' messages cost the backward pass, sent in three ways, and whether DDP's cost is within."""
    ways = {how: {(one.link, one.tokens): one for one in costs_of_messages(how)} for how in WAYS}
    rows = []
    for case, one in ways["DDP"].items():
        promised = dict(zip(("at least", "at most"), exposed(one.backward, one.message)))
        row = {"link": case[0], "tokens": f"{case[1]:,}"} | {"backward": one.backward} | promised
        row |= {words: ways[how][case].cost for how, words in WAYS.items()}
        row["DDP in the range"] = str(one.is_within(exposed))
        rows.append({name: v if isinstance(v, str) else f"{1e3 * v:,.1f}" for name, v in row.items()})
    return rows


def longer_passes(tokens: int) -> tuple[dict[str, tuple[float, float]], float]:
    """({who sends: (seconds of a backward pass without messages, seconds that its messages add)}, seconds of
    the message alone) over NVLink, of so many tokens on each GPU."""
    names = {"sent at the end": "at the end", "in buckets, as yours": "in buckets"}
    names |= {"DDP, bucket views": "DDP"}
    alone = _backward("no messages", "NVLink", tokens)
    found = {name: (alone, _backward(how, "NVLink", tokens) - alone) for name, how in names.items()}
    return {"no messages": (alone, 0.0)} | found, _alone("NVLink")


def exposed_messages() -> tuple[float, list[float]]:
    """(seconds foretold, [seconds recorded on each rank]) of all messages of a step of DeepSpeed's ZeRO-1
    over NVLink, with one micro-batch and no overlap: an all-reduce and an all-gather."""
    run = _only("zero_overlap", change="overlap off", link="NVLink", micro_batches=1, **ZERO)
    reduced = _only("overlap", how="at the end", link="NVLink").foretold["message"]
    return 1.5 * reduced, [report["busy"]["messages"] for report in run.reports]


def _alone(link: str) -> float:
    """Seconds of one message of all gradients after the backward pass: the median over ranks and sizes."""
    reports = _only("overlap", how="at the end", link=link).reports
    return statistics.median(busy["messages"] for report in reports for busy in report["busy"])


def _link_of(tokens: int) -> str:
    """Where a backward pass of so many tokens was recorded without messages."""
    known = {link: _only("overlap", how="no messages", link=link) for link in ("NVLink", "sockets")}
    return next(link for link, run in known.items() if tokens in run.reports[0]["tokens"])


def _backward(how: str, link: str, tokens: int) -> float:
    run = _only("overlap", how=how, link=link)
    at = run.reports[0]["tokens"].index(tokens)
    steps = [report["seconds"][at] for report in run.reports]
    return max(statistics.median(step[BACKWARD] for step in of_rank) for of_rank in steps)


def _step(**case: object) -> float:
    run = _only("zero_overlap", **case)
    return max(statistics.median(report["seconds"]) for report in run.reports)


def _only(experiment: str, **case: object) -> Run:
    (run,) = runs(experiment, **case)
    return run
