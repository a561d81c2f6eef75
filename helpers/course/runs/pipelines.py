"""What the companion of lesson 06 runs: DeepSpeed's pipeline of the lesson's small GPT, watched; stages of
which a rank may have several; and times of recorded pipelines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from helpers.course import corpus, models, recorded
from helpers.course.runs import staged
from helpers.course.runs.staged import COUNT, LENGTH, MICRO, SIZE, STEPS
from helpers.course.runs.steps import recorded_instructions, trained_pipeline
from helpers.course.training.comparable import WITHIN, join
from helpers.tools import theory
from helpers.tools.launcher.jobs import launch
from helpers.tools.measure.clock import Clock
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic
from helpers.tools.theory import schedules

if TYPE_CHECKING:
    from deepspeed import PipelineEngine
    from helpers.tools.launcher.jobs import Reports


# --- DeepSpeed's


def specifications(blocks: int = SIZE.layers) -> list:
    from deepspeed.pipe import LayerSpec

    inner = [LayerSpec(models.Block, SIZE) for _ in range(blocks)]
    return [LayerSpec(models.Embedding, SIZE), *inner, LayerSpec(models.Head, SIZE)]


def configuration(count: int = COUNT, zero: int = 0, clipping: float = 0.0, micro: int = MICRO) -> dict:
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": count,
        "gradient_clipping": clipping,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": zero, "reduce_bucket_size": 50_000},
    }


def pipeline(
    stages: int,
    config: dict,
    specify: Callable[[], list] = specifications,
    partition_method: str = "uniform",
    **options: object,
) -> PipelineEngine:
    """An engine, whose layers have the lesson's weights; what it prints about its cut is left out."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    deepspeed.init_distributed()
    options |= {"num_stages": stages, "loss_fn": models.NextTokenLoss(), "partition_method": partition_method}
    with staged.quiet():
        model = PipelineModule(specify(), **options, **staged.SEEDS)
    return deepspeed.initialize(model=model, config=config)[0]


def micro_batches(engine: PipelineEngine, step: int, length: int = LENGTH) -> Iterator:
    """This replica's micro-batches of a step."""
    replica, replicas = engine.grid.get_data_parallel_id(), engine.dp_world_size
    rows = corpus.batch(step, engine.train_batch_size(), length, replica, replicas, engine.device)
    each = engine.train_micro_batch_size_per_gpu()
    return ((ids, targets.clone()) for ids, targets in zip(*(part.split(each) for part in rows)))


def train(
    stages: int, specify: Callable[[], list] = specifications, options: Mapping = {}, **choice: object
) -> dict:
    """Three steps; `choice` as `configuration` has it, `options` as `pipeline`.

    Returns:
        What `trained_pipeline` returns without the engine, and "weights", "gradients", "blocks" of the stage.
    """
    report = trained_pipeline(
        partial(pipeline, stages, configuration(**choice), specify, **options), micro_batches, STEPS
    )
    engine = report.pop("engine")
    first, functions = engine.module.parts[report["stage"]], engine.module.forward_funcs
    own = {str(first + at): one for at, one in enumerate(functions) if isinstance(one, nn.Module)}
    report |= learned(nn.ModuleDict(own), engine.optimizer)
    return report | {"blocks": sum(isinstance(one, models.Block) for one in functions)}


def learned(layers: nn.Module, adam: object) -> dict:
    found = staged.Report().end(layers, adam)
    return {"weights": found.weights, "gradients": found.gradients}


@cache
def trained(stages: int) -> Reports:
    """`train` in as many ranks, once for all sections."""
    return launch(train, ranks=stages, arguments={"stages": stages})


def executed_with(stages: int, counts: Sequence[int]) -> dict[int, list]:
    """{micro-batches: this rank's order}, of one step each."""
    found = {}
    for count in counts:
        engine = pipeline(stages, configuration(count))
        with Ledger() as ledger:
            executed, _ = recorded_instructions(engine, ledger)
            engine.train_batch(data_iter=micro_batches(engine, 0))
        found[count] = schedules.actions(executed, engine.stage_id)
    return found


def timed(stages: int, count: int = 8, steps: int = 5) -> list[Clock]:
    """Clocks of this rank, of the steps after the first two."""
    engine, clocks = pipeline(stages, configuration(count, micro=4)), []
    for step in range(steps):
        with Clock() as clock:
            clock.watch(engine)
            engine.train_batch(data_iter=micro_batches(engine, step, SIZE.context))
        clocks.append(clock)
    return clocks[2:]


def median_step(stages: int) -> tuple[Clock, ...]:
    """The clocks of all ranks, of the step that took the median time on the slowest rank."""
    steps = list(zip(*launch(timed, ranks=stages, arguments={"stages": stages})))
    return sorted(steps, key=lambda clocks: max(clock.seconds for clock in clocks))[len(steps) // 2]


# --- beside one process


def apart(reports: Sequence[Mapping], right: object, losses: Sequence[float]) -> float:
    """As `staged.apart`, of dicts."""
    found = []
    for at, report in enumerate(reports):
        one = staged.Report()
        one.losses = list(losses) if at == 0 else [0.0] * len(losses)
        one.weights, one.gradients = report["weights"], report["gradients"]
        found.append(one)
    return staged.apart(found, right)


def compare(name: str, reports: Sequence[Mapping], losses: Sequence[float] | None = None) -> None:
    """Print the losses, and whether all of it equals one process."""
    losses = losses or [sum(step) for step in zip(*(report["losses"] for report in reports))]
    same = "equal" if apart(reports, staged.one_process(), losses) < WITHIN else "do NOT equal"
    tensors = len({name for report in reports for name in report["weights"]})
    print(f"{name:18} losses {' '.join(f'{loss:.3g}' for loss in losses)};", end=" ")
    print(f"losses, {tensors} weights and gradients {same} one process within 1e-4")


# --- bytes


def by_category(report: Mapping, stages: int, config: dict) -> dict[str, dict[str, int]]:
    """Predicted and measured bytes of one rank, by category."""
    device, held = trained(stages).device, report["held"]
    exact = theory.deepspeed_bytes(report["elements"], config, device=device)
    count = config["gradient_accumulation_steps"]
    where = {"blocks": report["blocks"], "stages": stages, "stage": report["stage"], "device": device}
    kept = theory.pipeline_held_bytes(SIZE, MICRO, LENGTH, 4, micro_batches=count, **where)
    measured = {category: held[category] for category in exact if category != "other"}
    measured["activations"] = held["activations"] + held["inputs"]
    return {"predicted": exact | {"activations": kept}, "measured": measured}


def activation_terms(blocks: int, stage: int, stages: int) -> dict[str, int]:
    """The bytes of one micro-batch on a stage, term by term."""
    tokens, first, last, device = MICRO * LENGTH, stage == 0, stage == stages - 1, trained(stages).device
    head = theory.head_activation_bytes(MICRO, LENGTH, SIZE.width, SIZE.vocabulary, 4, device)
    block = theory.block_activation_bytes(MICRO, LENGTH, SIZE.width, SIZE.heads, 4, device=device)
    logits = 4 * tokens * SIZE.vocabulary
    return {
        "its blocks": blocks * block,
        "token ids, embedding": (8 * tokens + theory.embedding_activation_bytes(LENGTH)) if first else 0,
        "output": logits if last else 4 * tokens * SIZE.width,
        "head, loss, targets": head + 8 * tokens if last else 0,
    }


# --- stages of which a rank may have several


class Worker:
    """A rank's stages, {number: layers}, of `count` in all; `rank_of(stage)` has a stage."""

    def __init__(
        self, stages: Mapping[int, nn.Module], count: int, rank_of: Callable[[int], int] = lambda stage: stage
    ) -> None:
        self.stages, self.last, self.rank_of = stages, count - 1, rank_of
        self.kept, self.gradients, self.losses, self.under_way = {}, {}, [], []

    def send(self, stage: int, tag: int, tensor: torch.Tensor) -> None:
        self.under_way.append((dist.isend(tensor, self.rank_of(stage), tag=tag), tensor))

    def receive(self, stage: int, tag: int) -> torch.Tensor:
        tensor = torch.empty(staged.SHAPE)
        dist.recv(tensor, self.rank_of(stage), tag=tag)
        return tensor

    def forward(self, stage: int, micro: int) -> None:
        x = self.receive(stage - 1, tag_of("F", stage, micro)).requires_grad_() if stage else self.ids[micro]
        y = self.stages[stage](x)
        if stage == self.last:
            y = models.next_token_loss(y, self.targets[micro]) / len(self.ids)
            self.losses.append(y.item())
        else:
            self.send(stage + 1, tag_of("F", stage + 1, micro), y.detach())
        self.kept[stage, micro] = x, y

    def arrived(self, stage: int, micro: int) -> torch.Tensor | None:
        return None if stage == self.last else self.receive(stage + 1, tag_of("B", stage + 1, micro))

    def backward(self, stage: int, micro: int) -> None:
        x, y = self.kept.pop((stage, micro))
        y.backward(self.arrived(stage, micro))
        if stage:
            self.send(stage - 1, tag_of("B", stage, micro), x.grad)

    def input_gradient(self, stage: int, micro: int) -> None:
        x, y = self.kept[stage, micro]
        self.gradients[stage, micro] = gradient = self.arrived(stage, micro)
        if stage:
            (to_send,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
            self.send(stage - 1, tag_of("B", stage, micro), to_send)

    def weight_gradients(self, stage: int, micro: int) -> None:
        _, y = self.kept.pop((stage, micro))
        y.backward(self.gradients.pop((stage, micro)), inputs=list(self.stages[stage].parameters()))


PASSES = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradients"}


def tag_of(kind: str, stage: int, micro: int) -> int:
    """Of the message that crosses the boundary before a stage."""
    return 2 * (100 * stage + micro) + (kind == "B")


def one_stage(rank: int, ranks: int) -> Worker:
    return Worker({rank: staged.stage(rank, ranks)}, ranks)


def many_stages(
    rank: int, count: int, rank_of: Callable[[int], int], layers_of: Callable[[int], nn.Module]
) -> Worker:
    own = {stage: layers_of(stage) for stage in range(count) if rank_of(stage) == rank}
    return Worker(own, count, rank_of)


def run(order_of: Callable, worker_of: Callable = one_stage) -> dict:
    """Train in this rank for three steps, with the orders of `order_of(rank, ranks, count)`."""
    rank, ranks, _ = join()
    worker, order, losses, in_flight = worker_of(rank, ranks), order_of(rank, ranks, COUNT), [], 0
    layers = nn.ModuleList(worker.stages.values())
    adam = torch.optim.AdamW(layers.parameters(), lr=1e-3)
    for step in range(STEPS):
        worker.ids, worker.targets = zip(*staged.rows(step))
        with Traffic() as traffic:
            for kind, stage, micro in order:
                getattr(worker, PASSES[kind])(stage, micro)
                in_flight = max(in_flight, len(worker.kept))
            for request, _ in worker.under_way:
                request.wait()
        worker.under_way.clear()
        adam.step()
        adam.zero_grad()
        losses.append(sum(worker.losses))
        worker.losses.clear()
    found = {"losses": losses, "sent": traffic.logged, "order": order, "in flight": in_flight}
    report = {"weights": {}, "gradients": {}}
    for one in worker.stages.values():
        for what, values in learned(one, adam).items():
            report[what] |= values
    return found | report


def ran(order_of: Callable, worker_of: Callable = one_stage) -> Reports:
    """`run` in four ranks."""
    arguments = {"order_of": order_of, "worker_of": worker_of}
    return launch(run, ranks=4, arguments=arguments, device="cpu")


# --- by the clock


def own_times(timelines: Sequence[Sequence[tuple]]) -> dict[tuple[str, int], float]:
    """{(kind, stage): the median milliseconds of such a pass}."""
    taken = [(event[:2], event[4] - event[3]) for row in timelines for event in row]
    return {key: statistics.median(time for one, time in taken if one == key) for key, _ in taken}


def predicted_stages(run: recorded.Run) -> tuple[list[float], object]:
    """Milliseconds of a micro-batch, there and back, on each of two stages; and the whole `StepTime`."""
    half = replace(run.size, layers=run.size.layers // 2)
    step = theory.step_seconds(half, recorded.machine(2), config=run.configuration)
    last = step.total - step.parts["optimizer"]
    ends = 0 if step.launch_bound else step.parts["embedding and loss"]  # else hidden behind the host's work
    return [1e3 * seconds / run.arguments["micro_batches"] for seconds in (last - ends, last)], step


def span(timelines: Sequence[Sequence[tuple]]) -> float:
    return max(row[-1][-1] for row in timelines) - min(row[0][-2] for row in timelines)


def replayed_with(stages: Sequence[float], timelines: Sequence[Sequence[tuple]]) -> list[list[tuple]]:
    """1F1B as recorded, but with these times of two stages; a third of each is the forward pass."""
    parts = {("F", at): both / 3 for at, both in enumerate(stages)}
    parts |= {("B", at): 2 * both / 3 for at, both in enumerate(stages)}
    return schedules.replay([[event[:3] for event in row] for row in timelines], parts)
