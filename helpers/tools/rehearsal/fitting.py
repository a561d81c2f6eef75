"""What a rank of a training holds and sends, in a rehearsal: two steps of a model from a configuration."""

from __future__ import annotations

import inspect
import itertools
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import diary, ulysses
from .adapting import adapted, built, counted
from .naming import alive, parts_at
from .of_transformers import checkpointed

if TYPE_CHECKING:
    import torch
    from deepspeed import DeepSpeedEngine
    from transformers import PreTrainedConfig

    from ..measure.ledger import Ledger
    from .question import Question

# Inputs of a checkpointed block, which is called again by itself; those of the whole model are a few kB.
KEPT = {"inputs": "activations"}
SHORT = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}


def two_steps(question: Question, drawn: bool = False) -> dict:
    """For `rehearse`: the first step makes the optimizer's states, the second goes on with them.

    Args:
        drawn: whether a figure is to be made, which takes a history.

    Returns:
        A dict: "elements" of the model; "kinds" of them, as `adapting.counted` has them; "dtype" of its first
        parameter; "sizes", elements of each parameter that is trained, as far as it is this rank's before
        ZeRO, "expert_sizes", those of divided experts, and "whole", as the model was built; "states",
        {category: bytes} between two micro-batches, or after the backward pass of the only one; "peaks",
        {phase: {category: bytes at the phase's highest moment}}; "parts", the same with temporaries by name,
        as `naming` has them; "host", {category: bytes} of the host's highest moment; "requests" to torch's
        allocator, as `playing` takes them; "sent", {operation: bytes that this rank sends during a whole
        step, as efficiently as can be}; "work" of a whole step, {pass: counts} as `working` has them;
        "history" for a figure; "seconds", and "real_bytes" of this process.
    """
    import deepspeed

    from ..measure.ledger import Ledger
    from .pinning import highest, pins
    from .requests import recorder
    from .working import listening, of_a_step, work

    started, marks = time.perf_counter(), []
    deepspeed.init_distributed()
    micro_batches = question.config["gradient_accumulation_steps"]

    def begin(phase):
        marks.append((ledger.clock, phase))
        ledger.mark(phase)
        work.begin(phase)

    with Ledger() as ledger, Ledger("cpu") as host:
        begin("building")
        engine, shape, made = prepared(question)
        ledger.watch(engine)
        with listening():
            sent_each, states = stepped(engine, question, shape, ledger, begin)
        begin("end")
        host.watch(engine)
        for counted_there in (host, ledger):
            counted_there.categories()  # so that what is owned has its category
        moments, vocabulary = highest_moments(ledger, marks), shape.get_text_config().vocab_size
        return made | {
            "states": states,
            "peaks": {phase: held_at(ledger, moment) for phase, moment in moments.items()},
            "parts": {
                phase: parts_at(ledger, moment, recorder.made, vocabulary)
                for phase, moment in moments.items()
            },
            "host": highest(host.storages, pins.storages),
            "requests": recorder.requests,
            "sent": sent(sent_each[-micro_batches:], question.accumulation),
            "work": of_a_step(work.passes, micro_batches, question.accumulation),
            "history": ledger.history() if drawn else None,
            "seconds": time.perf_counter() - started,
            "real_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }


def prepared(question: Question) -> tuple[DeepSpeedEngine, PreTrainedConfig, dict]:
    """DeepSpeed's engine, transformers' configuration, and what `two_steps` returns of the model."""
    import deepspeed
    from transformers import AutoConfig

    shape = AutoConfig.for_model(**question.model)
    model = built(question, shape, question.config if question.stage == 3 else None)
    model = checkpointed(model, question.checkpointing) if question.checkpointing else model
    model = adapted(model, question).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    whole = [numel(parameter) for parameter in trained]
    shared = {"mpu": ulysses.registered(model, question), "config": question.config}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, **shared)
    dtype = str(next(model.parameters()).dtype)
    kinds = counted(model, SHORT)
    if question.axes.divides:  # the model holds this rank's part alone
        kinds = {"frozen": {}, "trained": {SHORT.get(dtype, dtype): sum(whole)}}
    sizes = {True: [], False: []}  # by whether all ranks reduce it: experts' parameters are only some ranks'
    for parameter in filter(lambda one: one.requires_grad, model.parameters()):
        sizes[getattr(parameter, "allreduce", True)].append(numel(parameter))
    made = {"kinds": kinds, "dtype": SHORT.get(dtype, dtype), "whole": whole}
    made["elements"] = sum(sum(elements.values()) for elements in kinds.values())
    return engine, shape, made | {"sizes": sizes[True], "expert_sizes": sizes[False]}


def stepped(
    engine: DeepSpeedEngine,
    question: Question,
    shape: PreTrainedConfig,
    ledger: Ledger,
    begin: Callable[[str], None],
) -> tuple[list[dict[str, float]], dict[str, int]]:
    """Two steps, whose phases are begun by `begin`.

    Returns:
        (for each micro-batch what `Axes.ideal` returns, "states" as `two_steps` has them).
    """
    import transformers

    from ..measure.traffic import Traffic

    kind = getattr(transformers, question.architecture)
    options = {"use_cache": False} if "use_cache" in inspect.signature(kind.forward).parameters else {}
    sent_each, states = [], {}
    micro_batches = question.config["gradient_accumulation_steps"]
    diary.expect(2 * micro_batches)
    for number in range(2 * micro_batches):
        with Traffic() as traffic:
            begin("forward")
            loss = loss_of(engine, question, shape, options)
            begin("backward")
            engine.backward(loss)
            del loss
            if number == micro_batches:
                states = ledger.snapshot("states").categories
            begin("step")
            engine.step()
        sent_each.append(question.axes.ideal(traffic))
    return sent_each, states


def numel(parameter: torch.nn.Parameter) -> int:
    """Elements of a parameter, also of one that ZeRO-3 has divided."""
    return getattr(parameter, "ds_numel", parameter.numel())


def loss_of(
    engine: DeepSpeedEngine, question: Question, shape: PreTrainedConfig, options: dict
) -> torch.Tensor:
    """The loss of a micro-batch."""
    if question.axes.sequence > 1:
        return ulysses.loss(engine, question, options)
    return engine(**batch(question, shape, engine.device), **options).loss


def batch(question: Question, shape: PreTrainedConfig, device: torch.device) -> dict[str, torch.Tensor]:
    """What a micro-batch passes to the model; the labels of a language model are its input."""
    import torch

    def zeros(*sizes, dtype=torch.int64):
        return torch.zeros(sizes, dtype=dtype, device=device)

    ids = zeros(question.micro_batch, question.sequence)
    if question.labels == "tokens":
        return {"input_ids": ids, "labels": ids}
    if question.labels == "sequences":
        dtype = torch.float32 if shape.num_labels == 1 else torch.int64  # one label is a number to be met
        return {"input_ids": ids, "labels": zeros(question.micro_batch, dtype=dtype)}
    ends = {name: zeros(question.micro_batch) for name in ("start_positions", "end_positions")}
    return {"input_ids": ids, **ends}


def highest_moments(ledger: Ledger, marks: Sequence[tuple[int, str]]) -> dict[str, int]:
    """{phase: the clock at its highest moment}, a phase from one of the marks (clock, phase) to the next; of
    several the highest."""
    import numpy

    changes, highest = numpy.zeros(ledger.clock + 1, dtype=numpy.int64), {}
    for storage in ledger.storages:
        changes[storage.born] = storage.bytes
        if storage.died:
            changes[storage.died] = -storage.bytes
    totals = changes.cumsum()
    for (first, phase), (last, _) in itertools.pairwise(marks):
        moment = first + int(totals[first : last + 1].argmax())
        highest[phase] = max(highest.get(phase, moment), moment, key=totals.__getitem__)
    return highest


def held_at(ledger: Ledger, moment: int) -> dict[str, int]:
    held = Counter()
    for storage in alive(ledger, moment):
        held[KEPT.get(storage.final_category, storage.final_category)] += storage.bytes
    return dict(held)


def sent(micro_batches: Sequence[dict[str, float]], accumulation: int) -> dict[str, float]:
    """{operation: bytes sent} of a step with so many micro-batches; of those that were rehearsed all but the
    last are alike."""
    *others, last = micro_batches
    total = Counter(last)
    for operation, size in (others[0] if others else {}).items():
        total[operation] += (accumulation - 1) * size
    return dict(total)
