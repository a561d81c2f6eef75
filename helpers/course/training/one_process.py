"""The training without ranks, which others are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from helpers.course import corpus, models
from helpers.course.training.comparable import LENGTH, SEQUENCES, STEPS, gradients_of, weights_of, whole


def backward(model: Callable[..., torch.Tensor], rows: Iterable[torch.Tensor]) -> float:
    """One forward and one backward pass; the loss, a number."""
    loss = model(*rows)
    loss.backward()
    return loss.item()


def in_one_process(
    make: Callable[..., torch.optim.Optimizer],
    model: Callable[[models.GPTSize], torch.nn.Module] = models.GPT,
    size: models.GPTSize = models.TINY,
    lr: float = 1e-3,
    dtype: torch.dtype = torch.float32,
    max_norm: float = float("inf"),
) -> dict[str, list[float] | torch.Tensor]:
    """The training without ranks of `model(size)`, with an optimizer from `make(parameters, lr=)`: {"losses",
    "norms" of the gradient in each step before it is clipped, "start", "weights", "masters", "gradients"},
    which others are held against; "start" are the weights before the first step.  In bf16 masters in fp32 are
    updated."""
    model, losses, norms = models.build(model, size).to(dtype), [], []
    parameters, start = list(model.parameters()), weights_of(model)
    masters = parameters
    if dtype != torch.float32:
        masters = [torch.nn.Parameter(parameter.detach().float()) for parameter in parameters]
    optimizer = make(masters, lr=lr)
    for step in range(STEPS):
        losses.append(backward(model, corpus.batch(step, SEQUENCES, LENGTH)))
        for master, parameter in zip(masters, parameters):
            master.grad = parameter.grad.float()
        norms.append(torch.nn.utils.clip_grad_norm_(masters, max_norm).item())
        optimizer.step()
        for master, parameter in zip(masters, parameters):
            parameter.data.copy_(master.data)
            master.grad = parameter.grad = None
    report = {"losses": losses, "norms": norms, "start": start, "weights": weights_of(model)}
    gradients = gradients_of(model, optimizer) if masters is parameters else None
    return report | {"masters": whole(masters), "gradients": gradients}


def counted(
    make: Callable[[], torch.nn.Module], steps: int = 6, sequences: int = 8, length: int = 64
) -> dict[str, list[float] | int]:
    """Steps with Adam, in a rank, of the model that `make()` returns: {"losses": of each, "flops": of the
    first one's two passes}."""
    from torch.utils.flop_counter import FlopCounterMode

    model, losses, counter = make(), [], FlopCounterMode(display=False)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        with counter if step == 0 else nullcontext():
            losses.append(backward(model, corpus.batch(step, sequences, length)))
        adam.step()
        adam.zero_grad()
    return {"losses": losses, "flops": counter.get_total_flops()}
