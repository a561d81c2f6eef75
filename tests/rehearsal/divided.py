"""What is run in real ranks and rehearsed where ranks share more than data: a function for `launch` and for
`rehearse`."""

from __future__ import annotations

from helpers.tools.rehearsal import question, ulysses
from helpers.tools.rehearsal.fitting import batch
from helpers.tools.rehearsal.of_transformers import build_transformers
from tests.rehearsal import cases
from tests.support import configuration


def keys(stage=0, **more):
    """DeepSpeed's configuration of a small case."""
    zero = {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
    extra = {"gradient_clipping": 0.0} | more
    return configuration(stage, micro_batch=2, accumulation=2, extra=extra, **zero)


def ask(model, config, ranks, sequence=16, **more):
    return question.ask(model, config, ranks, sequence, **more)


def trained(asked):
    """Two steps of what was asked under a ledger: `cases.report`, and what is sent along each axis."""
    import deepspeed
    from transformers import AutoConfig
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    shape = AutoConfig.for_model(**asked.model)
    with Ledger() as ledger, Traffic() as traffic:
        config = asked.config if asked.stage == 3 else None
        model = build_transformers(shape, config, architecture=asked.architecture).train()
        shared = {"mpu": ulysses.registered(model, asked), "config": asked.config}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), **shared)
        ledger.watch(engine)
        found = cases.steps(ledger, traffic, engine, lambda _: loss(engine, asked, shape))
        return found | {"sent": asked.axes.ideal(traffic)}


def loss(engine, asked, shape):
    """Of ranks that share a sequence their own part of it: over gloo torch cannot go backward through a
    gather among ranks without the first."""
    if asked.axes.sequence == 1:
        return engine(**batch(asked, shape, engine.device)).loss
    part = ulysses.batch(asked, engine.device)
    return engine(labels=part["shift_labels"], use_cache=False, **part).loss
