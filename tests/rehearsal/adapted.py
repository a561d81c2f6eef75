"""Trainings of which a part is frozen, for `launch` and for `rehearse`: as a user writes them, and as the
command makes them."""

from __future__ import annotations

from tests.rehearsal.cases import keys, steps
from tests.rehearsal.features import labelled, rows, shape


def as_a_user(stage, lora=None, frozen=None, checkpointing=False):
    """A script: a model of transformers, adapters by peft or parameters frozen by a word in their names, and
    DeepSpeed.

    Args:
        lora: arguments of peft's `LoraConfig`.
    """
    import deepspeed
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM
    from transformers.integrations import HfDeepSpeedConfig
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    config = keys(stage)
    with Ledger() as ledger, Traffic() as traffic:
        known = HfDeepSpeedConfig(config) if stage == 3 else None
        torch.manual_seed(0)
        model = LlamaForCausalLM._from_config(shape("Llama"))
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        if lora:
            model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
        for name, parameter in model.named_parameters():
            if frozen and frozen in name:
                parameter.requires_grad = False
        del known
        return trained(model, config, ledger, traffic)


def as_the_command(question, config):
    """The model of a question, in the place of the one above."""
    import deepspeed
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic
    from helpers.tools.rehearsal.adapting import adapted, built
    from helpers.tools.rehearsal.of_transformers import checkpointed

    deepspeed.init_distributed()
    with Ledger() as ledger, Traffic() as traffic:
        model = built(question, shape("Llama"), config if question.stage == 3 else None)
        model = checkpointed(model) if question.checkpointing else model
        return trained(adapted(model, question), config, ledger, traffic)


def trained(model, config, ledger, traffic):
    import deepspeed

    chosen = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=chosen, config=config)
    ledger.watch(engine)
    return steps(ledger, traffic, engine, lambda number: labelled(engine, rows(number, engine.device)[0]))


def in_four_bits(shape, config):
    """What the experiment `qlora` does, with the stand-in for bitsandbytes, without double quantisation: the
    bytes that are held after three steps."""
    from functools import partial

    import deepspeed
    import torch
    from helpers import models
    from helpers.course.recording.in_ranks import engine_of, three_steps
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.rehearsal.four_bits import loaded

    deepspeed.init_distributed()
    with Ledger() as ledger:
        build = partial(models.build_transformers, models.chatglm(shape[0]))
        model = loaded(build, "cpu", torch.bfloat16, is_double=False)
        engine = engine_of(models.WithLoss(models.with_adapters(model, in_fp32=False)), config)
        engine.train()
        ledger.watch(engine)
        three_steps(engine, shape[1], [])
        return ledger.snapshot("after step").categories
