"""How fast a training goes that was rehearsed, in words: a step, so many tokens, and their price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..rehearsal.refusing import BadQuestion
from ..rehearsal.seconds import OFFLOADED, Seconds, known_as, seconds
from ..theory.hardware import HARDWARE
from .units import amount, counted, number_of, rate

if TYPE_CHECKING:
    from ..rehearsal.question import Question

DAY, HOUR = 86_400, 3_600  # seconds
NO_GPU = "seconds are unknown: name a GPU with --gpu"
VISIBLE = 0.05  # of a step: waiting for the host that is told


@dataclass(frozen=True)
class Terms:
    """What is asked about time.

    Attributes:
        gpu: a card's name, or None.
        unknown: why no seconds can be told, or "".
        tokens: of a whole training, or None.
        price: dollars of a GPU for an hour, or None.
        host_network: bytes per second from a host to others, or None.
    """

    gpu: str | None = None
    unknown: str = NO_GPU
    tokens: float | None = None
    price: float | None = None
    host_network: float | None = None

    @classmethod
    def of(cls, gpu: str | None, tokens: str | None, price: str | None, host_network: str | None) -> Terms:
        """Read the words of options; a BadQuestion where they ask for what cannot be told."""
        unknown = "" if gpu else NO_GPU
        try:
            known_as(gpu) if gpu else None
        except BadQuestion as refused:
            unknown = str(refused)
        words = {"tokens": tokens, "price": price, "host_network": host_network}
        words = {name: word for name, word in words.items() if word is not None}
        if words and unknown:
            raise BadQuestion(f"--{next(iter(words)).replace('_', '-')} asks for seconds, and {unknown}")
        if "price" in words and "tokens" not in words:
            raise BadQuestion("--price is of a whole training: say with --tokens how many tokens it takes")
        read = {"tokens": number_of, "price": amount, "host_network": rate}
        return cls(gpu, unknown, **{name: read[name](word) for name, word in words.items()})

    def check(self, question: Question) -> None:
        """Refuse days of a training that has no seconds."""
        if self.tokens and question.is_offloaded:
            raise BadQuestion(f"--tokens asks for days, and {OFFLOADED}")


@dataclass(frozen=True)
class Pace:
    """The seconds of the rank that takes longest, and what follows.

    Attributes:
        tokens: of a step on all GPUs.
        gpus: how many.
        peak: FLOPs per second of a GPU by its data sheet, in 16 bits; None for a training in 32.
    """

    terms: Terms
    seconds: Seconds
    tokens: int
    gpus: int
    peak: float | None

    @classmethod
    def of(
        cls, question: Question, reports: Mapping[int, Mapping], terms: Terms, gpus_per_host: int
    ) -> Pace | str:
        """Over {rank: what `fitting.two_steps` returned}; or a sentence that says why seconds are unknown."""
        if terms.unknown or question.is_offloaded:
            return terms.unknown or OFFLOADED
        timed = partial(seconds, question, gpu=terms.gpu, gpus_per_host=gpus_per_host)
        each = [timed(report, host_network=terms.host_network) for report in reports.values()]
        tokens = question.micro_batch * question.sequence * question.accumulation * question.axes.data
        peak = None if question.dtype == "fp32" else HARDWARE[known_as(terms.gpu)]["peak"].value
        return cls(terms, max(each, key=lambda one: one.both), tokens, question.ranks, peak)

    @property
    def mfu(self) -> tuple[float, float] | None:
        """Of the peak, what a step needs, at the slowest and at the fastest."""
        if not self.peak or not self.seconds.needed:
            return None
        least, most = (self.seconds.needed / time / self.peak for time in reversed(self.seconds.both))
        return least, most

    @property
    def days(self) -> tuple[float, float] | None:
        """Of all tokens that were asked for."""
        if not self.terms.tokens:
            return None
        fastest, slowest = (self.terms.tokens / self.tokens * time / DAY for time in self.seconds.both)
        return fastest, slowest

    @property
    def price(self) -> tuple[float, float] | None:
        """Dollars of all GPUs for these days."""
        if not self.terms.price:
            return None
        least, most = (days * DAY / HOUR * self.gpus * self.terms.price for days in self.days)
        return least, most

    def lines(self) -> list[str]:
        """For people."""
        seconds, messages = self.seconds, sum(self.seconds.messages.values())
        of = [f"computing {short(seconds.computing)}"]
        if messages:
            of.append(f"messages {short(messages)}")
        if seconds.fastest.hidden:
            of.append(f"of which up to {short(seconds.fastest.hidden)} hide")
        lines = [f"step: {between(seconds.both)} s ({', '.join(of)})"]
        if (waiting := seconds.slowest.parts["launches"]) > VISIBLE * seconds.slowest.total:
            lines.append(f"of it up to {short(waiting)} s the GPU waits for its host")
        mfu = "MFU {:.2f} to {:.2f}, ".format(*self.mfu) if self.mfu else ""
        lines.append(f"{mfu}with the constants of {seconds.constants}")
        if self.days:
            lines.append(f"{counted(self.terms.tokens)} tokens: {between(self.days)} days")
        if self.price:
            lines.append("price: ${:,.0f} to ${:,.0f}".format(*self.price))
        return lines

    def as_data(self) -> dict:
        """Plain data: seconds of a step, days, and dollars."""
        more = {"mfu": self.mfu, "days": self.days, "price": self.price}
        return self.seconds.as_data() | {"tokens_per_step": self.tokens} | more


def short(number: float) -> str:
    """With three digits, and none after the point from 100 on."""
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}"


def between(numbers: tuple[float, float]) -> str:
    return " to ".join(dict.fromkeys(map(short, numbers)))
