"""What makes trainings comparable: all read the same eight sequences of 32 tokens per step, and what each has
learned becomes one tensor, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext

import torch
from helpers.course import corpus
from helpers.tools.measure.internals import is_partitioned

SEQUENCES, LENGTH, STEPS = 8, 32, 3  # sequences of a step, over all ranks; tokens of each; optimizer steps
WITHIN = 1e-4  # losses further apart do not count as equal


def join() -> tuple[int, int, str]:
    """Join the other ranks: this one's number, how many there are, and its device."""
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    return comm.get_rank(), comm.get_world_size(), deepspeed.get_accelerator().current_device_name()


def own_rows(
    step: int, device: torch.device | str, sequences: int = SEQUENCES
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of a step's sequences: token ids and targets, each of shape (sequences / ranks,
    LENGTH)."""
    import deepspeed.comm as comm

    return corpus.batch(step, sequences, LENGTH, comm.get_rank(), comm.get_world_size(), device)


def whole(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Tensors in one of fp32 on the CPU; a collective where FSDP2 has sharded them."""
    full = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]
    return torch.cat([tensor.detach().float().flatten().cpu() for tensor in full])


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    """All parameters in one fp32 tensor on the CPU, in the model's order.  A collective where ZeRO-3 or FSDP2
    has sharded them."""
    parameters, gathering = list(model.parameters()), nullcontext()
    if any(map(is_partitioned, parameters)):
        import deepspeed

        gathering = deepspeed.zero.GatheredParameters(parameters)
    with gathering:
        return whole(parameters)


def masters_of(model: torch.nn.Module) -> torch.Tensor:
    """The fp32 masters of all parameters that ZeRO trains, as `weights_of`; a collective."""
    from deepspeed.utils import safe_get_full_fp32_param

    return whole(safe_get_full_fp32_param(parameter) for parameter in model.parameters())


def gradients_of(model: torch.nn.Module, optimizer: object) -> torch.Tensor | None:
    """Adam's running mean of the trained parameters' gradients, as `weights_of`; None for an optimizer
    without one.

    Weights alone may hide a gradient that is twice too large, since Adam divides by its size.  The mean grows
    with it.  Under ZeRO and FSDP2 this is a collective.
    """
    from deepspeed.utils import safe_get_full_optimizer_state

    states = getattr(optimizer, "optimizer", optimizer).state.values()  # of what a wrapper of ZeRO has inside
    if not any("exp_avg" in state for state in states):
        return None
    means = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter in optimizer.state:
            means.append(optimizer.state[parameter].get("exp_avg"))
        else:
            means.append(safe_get_full_optimizer_state(parameter, "exp_avg"))
        if means[-1] is None:
            return None
    return whole(means)


def gathered(shard: torch.Tensor, elements: int) -> torch.Tensor:
    """The flat tensor of which every rank has an equal shard, on the CPU, without its padding."""
    import deepspeed.comm as comm

    whole = torch.empty(len(shard) * comm.get_world_size(), dtype=shard.dtype, device=shard.device)
    comm.all_gather_into_tensor(whole, shard.contiguous())
    return whole[:elements].cpu()


def learned(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, master: torch.nn.Parameter
) -> dict[str, torch.Tensor | None]:
    """{"weights", "gradients"} as `weights_of` and `gradients_of` have them, where the optimizer updates this
    rank's shard of all parameters, `master`."""
    weights, mean = weights_of(model), optimizer.state[master].get("exp_avg")
    return {"weights": weights, "gradients": None if mean is None else gathered(mean, len(weights))}


def mean(series: Iterable[Sequence[float]]) -> list[float]:
    """The mean over the ranks of each step's loss, of the ranks' lists of losses."""
    return [sum(step) / len(step) for step in zip(*series, strict=True)]


def words(numbers: Iterable[float]) -> str:
    """Numbers to three digits, beside each other."""
    return " ".join(f"{number:.3g}" for number in numbers)


def same_answer(reports: Sequence[Mapping], right: Mapping) -> dict[str, str]:
    """A table's row on ranks' "losses", "weights" and "gradients": their mean losses, whether all weights are
    equal, and whether all is one process's answer; gradients in units of the largest one."""
    losses = mean(report["losses"] for report in reports)
    off = [abs(loss - other) for loss, other in zip(losses, right["losses"])]
    for report in reports:
        off.append((report["weights"] - right["weights"]).abs().max().item())
        if right["gradients"] is not None:
            distance = (report["gradients"] - right["gradients"]).abs().max()
            off.append((distance / right["gradients"].abs().max()).item())
    verdicts = {
        "ranks' weights equal": all(report["weights"].equal(reports[0]["weights"]) for report in reports),
        f"one process's answer within {WITHIN}": max(off) < WITHIN,
    }
    return {"losses": words(losses)} | {name: "yes" if right else "no" for name, right in verdicts.items()}
