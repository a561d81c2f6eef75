"""Other models and other ways to train, for `launch` and for `rehearse`: transformers, adapters, experts,
pipelines, AutoTP, offload."""

from __future__ import annotations

from helpers import models
from tests.rehearsal.cases import SMALL, keys, report, steps

WORDS = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
SEQUENCE = 16


def shape(name):
    """A small configuration of transformers."""
    import transformers

    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": SEQUENCE,
    }
    return {
        "GPT-2": lambda: transformers.GPT2Config(
            n_positions=SEQUENCE, n_embd=32, n_layer=2, n_head=2, **WORDS
        ),
        "GPT-NeoX": lambda: transformers.GPTNeoXConfig(intermediate_size=64, **small, **WORDS),
        "Llama": lambda: transformers.LlamaConfig(
            intermediate_size=64, num_key_value_heads=1, **small, **WORDS
        ),
        "Mixtral": lambda: transformers.MixtralConfig(
            intermediate_size=64, num_key_value_heads=1, num_local_experts=4, **small, **WORDS
        ),
        "GLM": lambda: models.chatglm(models.TINY_CHATGLM),
    }[name]()


def rows(number, device, ranks=None, rank=None):
    import deepspeed.comm as comm
    from helpers import corpus

    ranks, rank = ranks or comm.get_world_size(), comm.get_rank() if rank is None else rank
    return corpus.batch(number, ranks, SEQUENCE, rank, ranks, device)


def of_transformers(name, stage, bf16=True, checkpointing=False):
    """A model of transformers, whole or partitioned."""
    import deepspeed
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    config = keys(stage, bf16)
    with Ledger() as ledger, Traffic() as traffic:
        model = models.build_transformers(shape(name), config)
        if checkpointing:
            models.checkpointed(model)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        return steps(ledger, traffic, engine, lambda number: labelled(engine, rows(number, engine.device)[0]))


def labelled(engine, ids):
    return engine(input_ids=ids, labels=ids, use_cache=False).loss


def adapted(stage):
    """LoRA adapters beside a frozen model, by peft."""
    import deepspeed
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    config = keys(stage)
    with Ledger() as ledger, Traffic() as traffic:
        model = models.with_adapters(models.build_transformers(shape("GLM"), config if stage == 3 else None))
        model = models.WithLoss(models.checkpointed(model), chunks=2).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
        ledger.watch(engine)
        return steps(ledger, traffic, engine, lambda number: engine(*rows(number, engine.device)))


def offloaded(stage, parameters=False):
    """The optimizer's states, and the parameters too, in the host's memory; its Adam is torch's, since
    DeepSpeed's has to be compiled."""
    import deepspeed
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    there = {"device": "cpu", "pin_memory": False}
    config = keys(stage, offload_optimizer=there, **({"offload_param": there} if parameters else {})) | {
        "zero_force_ds_cpu_optimizer": False
    }
    with Ledger() as ledger, Traffic() as traffic:
        model = models.build(models.GPT, SMALL, config=config)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        return steps(ledger, traffic, engine, lambda number: engine(*rows(number, engine.device)))


def pipeline(stages, stage=0, bf16=True, interval=0, micro_batches=4):
    """Consecutive layers on consecutive ranks; the ledger looks after each step."""
    import contextlib
    import io

    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule
    from helpers import corpus
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    config = keys(stage, bf16, accumulation=micro_batches)
    blocks = [LayerSpec(models.Block, models.TINY) for _ in range(4)]
    layers = [LayerSpec(models.Embedding, models.TINY), *blocks, LayerSpec(models.Head, models.TINY)]
    with Ledger() as ledger, Traffic() as traffic, contextlib.redirect_stdout(io.StringIO()):
        options = {"partition_method": "uniform", "activation_checkpoint_interval": interval}
        net = PipelineModule(layers, num_stages=stages, loss_fn=models.NextTokenLoss(), **options)
        engine, *_ = deepspeed.initialize(model=net, config=config)
        ledger.watch(engine)
        for step in range(2):
            parts = corpus.batch(
                step,
                engine.train_batch_size(),
                32,
                engine.grid.get_data_parallel_id(),
                engine.dp_world_size,
                engine.device,
            )
            engine.train_batch(
                (ids, targets.clone()) for ids, targets in zip(*(part.split(1) for part in parts))
            )
            ledger.snapshot(f"step {step}")
        return report(ledger, traffic)


def tensor_parallel(size, stage=0):
    """DeepSpeed's AutoTP on a Llama: every matrix on several ranks."""
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic

    deepspeed.init_distributed()
    config = keys(stage) | {"tensor_parallel": {"autotp_size": size}}
    replica, replicas = comm.get_rank() // size, comm.get_world_size() // size
    with Ledger() as ledger, Traffic() as traffic:
        torch.manual_seed(0)
        wide = {
            "hidden_size": 64,
            "intermediate_size": 176,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        }
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(max_position_embeddings=SEQUENCE, **wide, **WORDS)
        )
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        return steps(
            ledger,
            traffic,
            engine,
            lambda number: labelled(engine, rows(number, engine.device, replicas, replica)[0]),
        )


OF_TRANSFORMERS = ("GPT-2", "GPT-NeoX", "Llama", "Mixtral")
CASES = {  # name: (function, ranks, arguments)
    **{
        f"{name}, stage {stage}": (of_transformers, 2, {"name": name, "stage": stage})
        for name in OF_TRANSFORMERS
        for stage in (0, 2, 3)
    },
    "GPT-NeoX, stage 3, checkpointing": (
        of_transformers,
        2,
        {"name": "GPT-NeoX", "stage": 3, "checkpointing": True},
    ),
    "Llama, stage 1, fp32": (of_transformers, 4, {"name": "Llama", "stage": 1, "bf16": False}),
    **{f"adapters, stage {stage}": (adapted, 2, {"stage": stage}) for stage in (0, 2, 3)},
    **{f"offload, stage {stage}": (offloaded, 2, {"stage": stage}) for stage in (1, 2, 3)},
    "offload of parameters": (offloaded, 2, {"stage": 3, "parameters": True}),
    "a pipeline of one": (pipeline, 1, {"stages": 1}),
    "a pipeline of two": (pipeline, 2, {"stages": 2}),
    "a pipeline of four, fp32": (pipeline, 4, {"stages": 4, "bf16": False}),
    "two pipelines of two, stage 1": (pipeline, 4, {"stages": 2, "stage": 1}),
    "AutoTP": (tensor_parallel, 2, {"size": 2}),
    "AutoTP, stage 1, two replicas": (tensor_parallel, 4, {"size": 2, "stage": 1}),
}
