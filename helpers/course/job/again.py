"""A recorded training, rehearsed: its bar can stand beside the recorded one."""

from __future__ import annotations

from helpers.course.models import GPTSize
from helpers.course.recording import recorded
from helpers.course.recording.recorded import Run

# Of the experiment `zero`, 7.5 billion parameters on two H200: {name: ZeRO's stage}.
AGAIN = {f"7.5 B, stage {stage}, 2 H200s": stage for stage in (1, 2, 3)}
H200 = "H200 141GB"


def run_of(name: str) -> Run:
    """The recorded run of a name in `AGAIN`."""
    (run,) = recorded.runs("zero", size="7.5B", stage=AGAIN[name], ranks=2, hardware="2 x NVIDIA H200")
    return run


def steps_in_parts(size: GPTSize, config: dict) -> dict:
    """For `rehearse`: the training of `experiments.zero`, with what `fitting.two_steps` returns of it under
    "elements", "states", "parts" and "requests"."""
    import deepspeed
    from helpers.course.recording.experiment import MICRO_BATCHES
    from helpers.course.recording.in_ranks import built, engine_of, rows
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.rehearsal.fitting import highest_moments, numel
    from helpers.tools.rehearsal.naming import parts_at
    from helpers.tools.rehearsal.requests import recorder

    deepspeed.init_distributed()
    marks, states = [], None

    def begin(phase):
        marks.append((ledger.clock, phase))
        ledger.mark(phase)

    with Ledger() as ledger:
        begin("building")
        engine = engine_of(built(size, config), config)
        ledger.watch(engine)
        for micro in range(2 * MICRO_BATCHES):
            batch = rows(micro, size.context)
            begin("forward")
            loss = engine(*batch)
            begin("backward")
            engine.backward(loss)
            del loss, batch
            if micro == MICRO_BATCHES:
                states = ledger.snapshot("states").categories
            begin("step")
            engine.step()
        begin("end")
        ledger.categories()  # so that what is owned has its category
    made, moments = recorder.made, highest_moments(ledger, marks)
    parts = {phase: parts_at(ledger, at, made, size.vocabulary) for phase, at in moments.items()}
    elements = sum(map(numel, engine.module.parameters()))
    return {"elements": elements, "states": states, "parts": parts, "requests": recorder.requests}
