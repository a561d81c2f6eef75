"""What lesson 04 runs beside the learner's functions: the same gradient, faults, two libraries, a slow link,
and answers of unequal length."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from helpers.course import corpus, models
from helpers.course.exercises.ladders import rebound
from helpers.course.runs.slow import SlowLink, sleeping_layers
from helpers.course.training.comparable import LENGTH, SEQUENCES, own_rows, weights_of
from helpers.tools import theory
from helpers.tools.launcher.jobs import launch
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

Replicas = Callable[[nn.Module, int], tuple[Callable[[], None], Callable]]  # as a learner writes it
BUCKET = 50_000  # elements
LONGER, LIMIT = (
    20,
    0.5,
)  # steps of a training whose losses are looked at; the norm at which gradients are clipped
WIDER = models.GPTSize(width=128)
Rows = tuple[torch.Tensor, torch.Tensor]


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().float().flatten().cpu() for tensor in tensors])


def gradient_of(model: nn.Module) -> torch.Tensor:
    """All gradients in one tensor on the CPU."""
    return joined([parameter.grad for parameter in model.parameters()])


def micro_batches(rows: Rows, count: int) -> list[Rows]:
    """A rank's rows in so many equal parts."""
    return list(zip(*(part.chunk(count) for part in rows)))


def apart(found: torch.Tensor, right: torch.Tensor) -> float:
    """How far a gradient is from the right one, in lengths of that."""
    return ((found - right).norm() / right.norm()).item()


# --- the same gradient


def whole_gradient(size: models.GPTSize = models.TINY, parts: int = 1) -> torch.Tensor:
    """Of one process that reads all eight sequences, added up in so many parts."""
    model = models.build(models.GPT, size)
    for part in micro_batches(corpus.batch(0, SEQUENCES, LENGTH), parts):
        (model(*part) / parts).backward()
    return gradient_of(model)


def alone(size: models.GPTSize = models.TINY, parts: int = 1) -> torch.Tensor:
    return launch(whole_gradient, ranks=1, arguments={"size": size, "parts": parts}, device="cpu")[0]


def first_gradient(replicas: Replicas, parts: int = 1) -> dict[str, object]:
    """{"gradient": of the first step, "units": gradients' bytes that messages carried} of a rank whose seed
    is its own; each of its micro-batches sends."""
    from helpers.course.training.comparable import join

    rank, _, device = join()
    model = models.build(models.GPT, seed=rank)
    finish, _ = replicas(model, BUCKET)
    with Traffic() as traffic:
        for part in micro_batches(own_rows(0, device), parts):
            (model(*part) / parts).backward()
            finish()
    gradient = gradient_of(model)
    carried = traffic.logged.get("all_reduce", 0) / (4 * len(gradient))
    return {"gradient": gradient, "units": carried}


def same_gradient(replicas: Replicas) -> str:
    """In words, how far the gradient is from one process's, in its length, and whether all ranks have the
    same bits; first one process that adds in two halves, which is the noise of rounding."""
    right = alone()
    said = [
        f"one process, added in two halves: {apart(alone(parts=2), right):.0e} from one that adds at once"
    ]
    for ranks in (2, 4):
        reports = launch(first_gradient, ranks=ranks, arguments={"replicas": replicas}, device="cpu")
        found = [report["gradient"] for report in reports]
        bits = "the same bits" if all(one.equal(found[0]) for one in found) else "OTHER bits"
        off = max(apart(one, right) for one in found)
        said.append(f"{ranks} ranks, each with a seed of its own: {off:.0e} from it, {bits} on all ranks")
    return "\n".join(said)


def all_send(replicas: Replicas) -> tuple[float, float]:
    """Four micro-batches on two ranks, all of which send: (distance of the gradient from one process's, in
    its length; gradients' bytes that messages carried)."""
    arguments = {"replicas": replicas, "parts": 4}
    found = launch(first_gradient, ranks=2, arguments=arguments, device="cpu")[0]
    return apart(found["gradient"], alone()), found["units"]


# --- faults, each a whole training


class Report:
    """What tests look at in a rank after a training."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.start, self.losses = model, weights_of(model), []

    @property
    def moved(self) -> torch.Tensor:
        return weights_of(self.model) - self.start


def own_start(model: nn.Module) -> None:
    """In the place of `same_start`: each rank keeps what it has."""


def summed(start: Callable) -> Callable:
    """`start` without the division."""

    def begin(parameters: list[nn.Parameter]) -> Callable[[], None]:
        finish = start(parameters)

        def end() -> None:
            finish()
            for parameter in parameters:
                parameter.grad *= dist.get_world_size()

        return end

    return begin


def rows_of_rank_0(step: int, device: str) -> Rows:
    """Every rank reads the rows that are rank 0's."""
    return corpus.batch(step, SEQUENCES, LENGTH, 0, dist.get_world_size(), device)


def clips_first(train: Callable, same_start: Callable, start: Callable) -> Callable:
    """`train`, in which each rank clips its own gradient before the mean, and nothing clips afterwards."""

    def trained(limit: float = float("inf"), **options: object) -> Report:
        def clipping(model: nn.Module, size: int) -> tuple[Callable, Callable]:
            from contextlib import nullcontext

            def finish() -> None:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
                start(list(model.parameters()))()

            same_start(model)
            return finish, nullcontext

        return train(replicas=clipping, **options)

    return trained


def tests(looks: Mapping[str, tuple[str, dict]]) -> dict[str, Callable]:
    """Tests for `caught`, of trainings: {name: (what is looked at, options of the training)}.

    "equal": how far the ranks' weights are apart, in what one rank moved; "differ": 1 where all ranks report
    the same loss, though there are several; "moved": what the weights have moved by.
    """
    return {name: _Test(what, options) for name, (what, options) in looks.items()}


class _Test:
    known: dict = {}

    def __init__(self, what: str, options: dict) -> None:
        self.what, self.options = what, options

    def __call__(self, train: Callable) -> object:
        key = id(train), repr(self.options)
        if key not in self.known:
            self.known[key] = train, train(**self.options)
        report = self.known[key][1]
        if self.what == "moved":
            return report.moved
        mine = (
            weights_of(report.model) if self.what == "equal" else torch.tensor([*map(float, report.losses)])
        )
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        if self.what == "differ":
            return float(len(everyone) > 1 and all(other.equal(mine) for other in everyone))
        return max(((other - mine).norm() / report.moved.norm()).item() for other in everyone)


def buckets_of(collect: Callable, full: int) -> tuple[list[int], list[int]]:
    """Elements of each message that leaves during a backward pass of the small GPT, and of those that leave
    after it."""
    model, sent = models.build(models.GPT), []
    flush = collect(model, full, lambda parameters: sent.append(sum(one.numel() for one in parameters)))
    model(*corpus.batch(0, 2, LENGTH)).backward()
    early = len(sent)
    flush()
    return sent[:early], sent[early:]


def bugs(
    train: Callable, replicas: Replicas, collect: Callable, same_start: Callable, start: Callable
) -> dict[str, Callable]:
    """Five bugs, each `train` with one: {name: training}.  `collect` is a faulty one, the others are not."""
    each = {"last bucket never sent": {"collect": collect}, "each its own start": {"same_start": own_start}}
    each["a sum, no mean"] = {"start": summed(start)}
    found = {name: partial(train, replicas=rebound(replicas, bug)) for name, bug in each.items()}
    found["all read the same rows"] = partial(train, rows=rows_of_rank_0)
    return found | {"clip, then average": clips_first(train, same_start, start)}


def five_tests() -> dict[str, Callable]:
    """Two tests that compare the ranks with one another, and three that compare with one process."""
    sgd = {"make": torch.optim.SGD, "lr": 1e-2}
    looks = {"ranks' weights are equal": ("equal", {}), "ranks' losses differ": ("differ", {})}
    looks |= {"as one process, AdamW": ("moved", {}), "as one process, SGD": ("moved", sgd)}
    return tests(looks | {"as one process, SGD, clipped": ("moved", sgd | {"limit": LIMIT})})


def mean_losses(trainings: Mapping[str, Callable]) -> dict[str, list[float]]:
    """{name: the ranks' mean loss of each step} of a longer training on two ranks, which clips."""
    reports = launch(losses_of, ranks=2, arguments={"trainings": dict(trainings)}, device="cpu")
    return {name: [sum(both) / 2 for both in zip(*(one[name] for one in reports))] for name in trainings}


def losses_of(trainings: Mapping[str, Callable]) -> dict[str, list[float]]:
    longer = {"steps": LONGER, "limit": LIMIT}
    return {name: [float(loss) for loss in train(**longer).losses] for name, train in trainings.items()}


# --- the learner's, DDP, DeepSpeed


class Watch:
    """Three steps of a model, each on the same eight sequences in micro-batches of one; the last is counted.

    A training goes through its steps, and says when a step's backward passes have ended:

        for parts in watch.steps(optimizer or engine):
            ...
            watch.ended()
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._ledger.__enter__()
        self.model = models.build(models.GPT, WIDER)
        self._early, self._traffic, self._found = 0, None, {}
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, parameter: nn.Parameter) -> None:
        self._early = self._messages()

    def _messages(self) -> int:
        return sum(one.count for one in self._traffic.messages if one.operation == "all_reduce")

    def steps(self, updates: torch.optim.Optimizer | DeepSpeedEngine) -> Iterator[list[Rows]]:
        for number in range(3):
            if number == 2:  # the optimizer has its states
                self._ledger.watch(*([updates] if hasattr(updates, "module") else [self.model, updates]))
            self._ledger.snapshot("before the step")  # from here on the peak counts
            with Traffic() as self._traffic:
                yield micro_batches(own_rows(0, "cpu"), SEQUENCES // dist.get_world_size())

    def ended(self) -> None:
        gc.collect()
        snapshot = self._ledger.snapshot("after backward")
        found = {"early": self._early, "messages": self._messages()}
        found |= {"held": snapshot.total, "peak": snapshot.peak}
        self._found = found | {
            "gradient": gradient_of(self.model).numpy().copy()
        }  # no tensor, which would count

    def report(self) -> dict[str, object]:
        self._ledger.__exit__(None, None, None)
        return self._found | {"sent": self._traffic.sent}


def beside_each_other(ways: Mapping[str, Callable], ranks: int = 2) -> list[dict[str, object]]:
    """Rows for a table: of each training its gradient, what it sent, when, and what it holds, in the third
    step.  Bytes are those of the sockets, where these can be counted."""
    right, rows = alone(WIDER), []
    for name, train in ways.items():
        found = launch(train, ranks=ranks, device="cpu")
        first, elements = found[0], len(right)
        gradients = [torch.from_numpy(one["gradient"]) for one in found]
        off = max(((one - right).abs().max() / right.abs().max()).item() for one in gradients)
        sent = "not counted" if first["sent"] is None else f"{first['sent'] / (4 * elements):.2f}"
        rows.append(
            {
                f"{ranks} ranks": name,
                "gradient": "as one process's, within 1e-5" if off < 1e-5 else f"{off:.2g} off",
                "sent, in gradients": sent,
                "messages": first["messages"],
                "begun early": first["early"],
                "bytes per parameter": f"{first['held'] / elements:.1f}",
                "at the peak": f"{first['peak'] / elements:.1f}",
            }
        )
    return rows


# --- a slow link


class Slowed:
    """A backward pass on two ranks that sleep instead of computing, joined by a slow link.

    Attributes:
        layers, work, message: how many there are; seconds of the pass, and of all gradients on the link.
        bandwidth: of the link, in bytes per second.
        buckets: {way: into how many equal messages it cuts the gradients}.
        seconds: {way: until all means are there on both ranks, measured, of the quickest of three passes}.
        worked: {way: until the last layer's work ended, on the rank that was there last}.
        spans: {way: what that rank and its link did in this pass}.
    """

    def __init__(self, replicas: Replicas, ways: Mapping[str, int], layers: int, share: float) -> None:
        self.layers, self.buckets = layers, dict(ways)
        self.work = layers * EACH
        self.message = share * self.work
        self.bandwidth = theory.wire_bytes("all_reduce", 4 * layers * WIDTH**2, 2) / self.message
        arguments = {"replicas": replicas, "buckets": self.buckets, "layers": layers}
        arguments["bandwidth"] = self.bandwidth
        reports = launch(clocked, ranks=2, arguments=arguments, device="cpu")
        self.seconds, self.spans = {}, {}
        for way in ways:
            passes = zip(*(report[way] for report in reports))  # of each the ranks' (seconds, spans)
            slower = min((max(both, key=_first) for both in passes), key=_first)
            self.seconds[way], self.spans[way] = slower
        self.worked = {
            way: max(end for kind, _, end in spans if kind == "backward") for way, spans in self.spans.items()
        }


def _first(pair: tuple) -> float:
    return pair[0]


WIDTH, EACH, PASSES = 128, 0.05, 3  # of a layer; seconds of its backward pass; how often it is clocked


def over_a_slow_link(
    replicas: Replicas, ways: Mapping[str, int], layers: int = 8, share: float = 0.8
) -> Slowed:
    """Clock a backward pass of so many sleeping layers over a link that carries all gradients in `share` of
    it.

    Args:
        ways: {name: into how many messages the gradients are cut}.
    """
    return Slowed(replicas, ways, layers, share)


def clocked(replicas: Replicas, buckets: Mapping[str, int], layers: int, bandwidth: float) -> dict:
    """{way: [(seconds, [(kind, begin, end)]) of each pass]}."""
    from helpers.course.training.comparable import join

    rank, _, _ = join()
    torch.set_num_threads(1)
    found = {}
    for way, count in buckets.items():
        model, link = sleeping_layers(layers, WIDTH, backward=EACH), SlowLink(0.0, bandwidth)
        finish, _ = replicas(model, layers * WIDTH**2 // count)
        passes = []
        for number in range(1 + PASSES):  # the first one warms up
            loss = model(torch.ones(1, WIDTH)).sum()
            for layer in model:
                layer.spans.clear()
            dist.barrier()
            with link.joins():
                begin = time.perf_counter()
                loss.backward()
                finish()
                seconds = time.perf_counter() - begin
            spans = [span for layer in reversed(model) for span in layer.spans] + link.spans
            shifted = [(kind, start - begin, end - begin) for kind, start, end in spans]
            passes += [(seconds, shifted)] * (number > 0)
            model.zero_grad()
        found[way] = passes
    return found


def tokens_by_trying(parameters: float, rate: float, bandwidth: float, ranks: int) -> float:
    """Tokens whose backward pass takes as long as the all-reduce of bf16 gradients, by bisection."""
    message, low, high = theory.wire_bytes("all_reduce", 2 * parameters, ranks) / bandwidth, 0.0, 1e9
    for _ in range(100):
        tokens = (low + high) / 2
        too_few = 4 * parameters * tokens / rate < message
        low, high = (tokens, high) if too_few else (low, tokens)
    return tokens


# --- answers of unequal length


def padded_rows(rank: int, ranks: int) -> Rows:
    """A rank's part of eight rows of questions and answers, sorted by length: four are full, and four have
    four tokens each.  Padding has the target -100, which torch's cross-entropy leaves out."""
    ids, targets = corpus.batch(0, SEQUENCES, LENGTH, rank, ranks)
    full = torch.arange(SEQUENCES).chunk(ranks)[rank] < SEQUENCES // 2
    return ids, torch.where(full[:, None] | (torch.arange(LENGTH) < 4), targets, -100)


def against_one_process(fine_tune: Callable, **arguments: object) -> dict[str, object]:
    """A fine-tuning on two ranks, of (loss, gradient), beside the same in one process."""
    right = launch(fine_tune, ranks=1, arguments=arguments, device="cpu")[0]
    pair = launch(fine_tune, ranks=2, arguments=arguments, device="cpu")
    losses, found = zip(*pair)
    return {
        "gradients equal on both ranks": found[0].equal(found[1]),
        "losses differ": losses[0] != losses[1],
        "mean loss": round(sum(losses) / 2, 2),
        "one process's loss": round(right[0], 2),
        "distance": apart(found[0], right[1]),
    }
