"""What lesson 05's companion runs with the course's GPT: shared by hand beside one process, and by AutoTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from helpers.course import corpus, models
from helpers.course.models.tensor_parallel import AUTOTP_RULES, CopyToGroup, SumOverGroup, tensor_part
from helpers.course.plots.tables import Table, table
from helpers.course.runs.steps import trained
from helpers.course.training.comparable import join
from helpers.tools.launcher.jobs import launch
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from helpers.tools.launcher.jobs import Reports

    Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    Part = Callable[[str, torch.Tensor, int, int], torch.Tensor]

SIZE, BATCH, LENGTH = models.TINY, 4, 32
ADAM = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
SGD = {"type": "SGD", "params": {"lr": 1.0}}
RUNS = {  # name: ranks, tensor-parallel ranks, and the run whose losses it must have
    "one process": (1, 1, None),
    "t = 2": (2, 2, "one process"),
    "t = 4": (4, 4, "one process"),
    "2 replicas": (2, 1, None),
    "2 replicas x t = 2": (4, 2, "2 replicas"),
}


# --- by hand


def column(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return nn.functional.linear(CopyToGroup.apply(x, None), weight, bias)


def summed(part: torch.Tensor) -> torch.Tensor:
    """g of lesson 05."""
    return SumOverGroup.apply(part, None)


def row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return summed(nn.functional.linear(x, weight)) + bias


class Parallel(nn.Module):
    """A linear layer of which this rank holds a part."""

    def __init__(self, function: Layer, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.function, self.weight = function, own(weight)
        self.bias = None if bias is None else own(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight, self.bias)


def own(tensor: torch.Tensor) -> nn.Parameter:
    """A parameter of this rank; one that is a parameter already stays the same, as where weights are tied."""
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach().clone())


def shard(model: nn.Module, rank: int, ranks: int, column: Layer = column, row: Layer = row) -> nn.Module:
    """The model with this rank's part of the four linear layers of every block."""
    for name, layer in list(model.blocks.named_modules()):
        if isinstance(layer, nn.Linear):
            function = row if name.endswith(("out", "down")) else column
            parts = (
                tensor_part(f"{name}.{part}", getattr(layer, part), rank, ranks)
                for part in ("weight", "bias")
            )
            model.blocks.set_submodule(name, Parallel(function, *parts))
    return model


def with_random_biases() -> nn.Module:
    """A GPT whose biases are not zero, which would hide a mistake with them."""
    model = models.build(models.GPT)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.02)
    return model


def against_one_process(
    shard: Callable = shard,
    part: Part = tensor_part,
    loss_of: Callable = lambda model, ids, targets: model(ids, targets),
    finish: Callable[[nn.Module], None] = lambda model: None,
) -> dict[str, object]:
    """Loss and gradients of a shared model beside those of a complete one, on the same rank."""
    rank, ranks, device = join()
    batch = corpus.batch(0, BATCH, LENGTH, device=device)  # the same for all ranks
    complete = with_random_biases().to(device)
    shared = shard(with_random_biases().to(device), rank, ranks)
    expected = complete(*batch)
    expected.backward()
    with Traffic() as forward:
        loss = loss_of(shared, *batch)
    with Traffic() as backward:
        loss.backward()
    finish(shared)
    pairs = zip(shared.named_parameters(), complete.parameters(), strict=True)
    off = [(mine.grad - part(name, one.grad, rank, ranks)).abs().max() for (name, mine), one in pairs]
    found = {"loss off": abs(loss - expected).item(), "gradients off": max(off).item()}
    found |= {"parameters": sum(parameter.numel() for parameter in shared.parameters())}
    return found | {"forward": forward, "backward": backward}


def compare(**choice: object) -> dict[int, Reports]:
    """`against_one_process` on two and four ranks, in words; {ranks: reports}."""
    reports = {ranks: launch(against_one_process, ranks=ranks, arguments=choice) for ranks in (2, 4)}
    for ranks, found in reports.items():
        same = {what: all(one[f"{what} off"] < 1e-5 for one in found) for what in ("loss", "gradients")}
        said = ", ".join(f"{what} {'yes' if equal else 'NO'}" for what, equal in same.items())
        print(f"t = {ranks}: {found[0]['parameters']:,} parameters on each rank;", end=" ")
        print(f"equal one process within 1e-5: {said}")
    return reports


def messages(reports: Mapping[int, Reports]) -> Table:
    """What `compare` has counted."""
    rows = []
    for ranks, found in reports.items():
        for name in ("forward", "backward"):
            for one in found[0][name].messages:
                counted = {"t": ranks, "pass": name, "messages": one.count}
                rows.append(counted | {"operation": one.operation, "bytes of each": one.bytes})
    return table(rows)


# --- by AutoTP


def configuration(
    tensor_ranks: int,
    rules: Mapping | None = AUTOTP_RULES,
    bf16: bool = False,
    accumulation: int = 1,
    zero: Mapping | None = None,
    optimizer: Mapping = ADAM,
    **tensor: object,
) -> dict:
    """DeepSpeed's; `tensor` are more keys of its section."""
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.1,
        "bf16": {"enabled": bf16},
        "optimizer": optimizer,
        "zero_allow_untested_optimizer": True,  # ZeRO with SGD
        "zero_optimization": zero or {"stage": 0},
    }
    if tensor_ranks > 1:
        config["tensor_parallel"] = {"autotp_size": tensor_ranks, **tensor}
        if rules:
            config["tensor_parallel"]["partition_config"] = rules
    return config


def gpt() -> nn.Module:
    return models.build(models.GPT, SIZE)


def gpt_loss(engine: DeepSpeedEngine, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return engine(ids, targets)


def llama(heads: int = 4, key_value_heads: int = 4, layers: int = 4, **more: object) -> nn.Module:
    """A small Llama of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": layers}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": key_value_heads}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, **shape, **more))


def llama_loss(engine: DeepSpeedEngine, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return models.next_token_loss(engine(input_ids=ids).logits, targets)


def start(make: Callable, tensor_ranks: int, **choice: object) -> tuple[DeepSpeedEngine, Callable]:
    """An engine, and what gives the rows of this rank's group in a step."""
    import deepspeed
    import deepspeed.comm as comm

    model, config = make(), configuration(tensor_ranks, **choice)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    group, groups = comm.get_rank() // tensor_ranks, comm.get_world_size() // tensor_ranks
    return engine, lambda step: corpus.batch(step, BATCH * groups, LENGTH, group, groups, engine.device)


def train(make: Callable = gpt, loss_of: Callable = gpt_loss, **choice: object) -> dict:
    """Three steps with SGD: Adam would hide a gradient or a norm that is twice too large."""
    return trained(*start(make, optimizer=SGD, **choice), loss_of)


def hold(make: Callable = gpt, loss_of: Callable = gpt_loss, **choice: object) -> dict[str, object]:
    """Model states between two micro-batches, and activations after a forward pass, in the second step."""
    with Ledger() as ledger:
        engine, batch_of = start(make, accumulation=2, bf16=True, **choice)
        ledger.watch(engine)
        for micro in range(4):
            loss = loss_of(engine, *batch_of(micro))
            kept = ledger.snapshot("after forward")
            engine.backward(loss)
            del loss
            if micro % 2 == 0:
                between = ledger.snapshot("between micro-batches")
            engine.step()
    sizes = [getattr(parameter, "ds_numel", parameter.numel()) for parameter in engine.module.parameters()]
    return {"states": between, "activations": kept["activations"], "sizes": sizes}
