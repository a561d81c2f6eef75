"""All that measuring needs of torch and DeepSpeed and that they do not promise: their private attributes,
read and replaced here alone.

Written against torch 2.11 and DeepSpeed 0.19.  `tests/measure/test_internals.py` names each attribute that a
new version no longer has.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from deepspeed import PipelineEngine

__all__ = [
    "TorchDispatchMode",
    "clear_workspaces",
    "group_patience",
    "grow_segments",
    "in_backward",
    "is_gathered",
    "is_partitioned",
    "limit_patience",
    "local_part",
    "log_messages",
    "log_plain_messages",
    "open_modes",
    "owned_tensors",
    "places_that_send",
    "storage_key",
    "tensors_among",
    "tell_of_resizing",
    "unseen",
    "whole_shape",
    "wrap_instructions",
]

# DeepSpeed's optimizer wrappers, {class: {category: attributes}}; each attribute holds a tensor or containers
# of tensors.
WRAPPERS = {
    "deepspeed.runtime.fp16.unfused_optimizer.FP16_UnfusedOptimizer": {  # stage 0 in bf16
        "parameters": ("fp16_groups",),
        "master weights": ("fp32_groups",),
    },
    "deepspeed.runtime.fp16.fused_optimizer.FP16_Optimizer": {  # the same with DeepSpeed's own FusedAdam
        "parameters": ("fp16_groups_flat",),
        "master weights": ("fp32_groups_flat",),
    },
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer": {
        "parameters": ("bit16_groups_flat",),
        "master weights": ("single_partition_of_fp32_groups",),
        "gradients": ("averaged_gradients", "grads_in_partition", "all_grad_tensors"),
        "buffers": (
            "ipg_buckets",
            "param_buffer_of_bit16_for_cpu_offload_groups",
            "temp_grad_buffer_for_cpu_offload",
        ),
    },
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3": {
        "parameters": ("fp16_groups", "fp16_partitioned_groups_flat", "lp_param_buffer"),
        "master weights": ("fp32_partitioned_groups_flat",),
        "gradients": ("averaged_gradients", "grad_partitions_flat_buffer"),
        "buffers": ("ipg_buckets",),
    },
    # stage 1 with gradients accumulated in fp32, and pipelines
    "deepspeed.runtime.bf16_optimizer.BF16_Optimizer": {
        "parameters": ("bf16_groups_flat",),
        "master weights": ("fp32_groups_flat_partition",),
        "gradients": (
            "fp32_groups_gradients_flat",
            "fp32_groups_gradients",
            "fp32_groups_gradient_flat_partition",
        ),
    },
    "deepspeed.runtime.zero.parameter_offload.DeepSpeedZeRoOffload": {},  # stage 3 without an optimizer
    "deepspeed.runtime.utils.DummyOptim": {},  # none
}
STATELESS = (
    "deepspeed.runtime.zero.parameter_offload.DeepSpeedZeRoOffload",
    "deepspeed.runtime.utils.DummyOptim",
)
# Optimizers that keep all their tensors in `state`, as torch's own do.
WITH_STATE = ("deepspeed.ops.adam.fused_adam.FusedAdam", "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam")
SHARDS = (
    "ds_tensor",
    "ds_secondary_tensor",
)  # of a parameter under ZeRO-3: this rank's part; with hpZ its part among its neighbours, until the step


# --- what tensors are for


def owned_tensors(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """(category, tensor) of a DeepSpeed engine, or of a torch module and its optimizer.

    Raises:
        TypeError: for an optimizer of a class that is not known here.
    """
    module = getattr(model, "module", model)
    optimizer = optimizer or getattr(model, "optimizer", None)
    for buffer in module.buffers():
        yield "buffers", buffer
    if optimizer is not None:
        yield from _tensors_of_optimizer(optimizer)
    for parameter in module.parameters():
        yield "parameters", parameter.data
        for name in SHARDS:
            if (shard := getattr(parameter, name, None)) is not None:
                yield "parameters", shard
        if parameter.grad is not None:
            yield "gradients", parameter.grad


def _tensors_of_optimizer(optimizer):
    name = _name(optimizer)
    if name in WRAPPERS:
        for category, attributes in WRAPPERS[name].items():
            for attribute in attributes:  # one that these keys of DeepSpeed do not create is passed over
                for tensor in _tensors_in(getattr(optimizer, attribute, None)):
                    yield category, tensor
        if name in STATELESS:
            return
        optimizer, name = optimizer.optimizer, _name(optimizer.optimizer)
    if not name.startswith("torch.optim.") and name not in WITH_STATE:
        raise TypeError(
            f"the ledger does not know where {name} keeps its tensors, and would count them as "
            '"other": watch the model alone and label '
            'them yourself, `ledger.label("optimizer states", tensor)`, or name the class in '
            "helpers/tools/measure/internals.py"
        )
    for tensor in _tensors_in(dict(optimizer.state)):
        yield "optimizer states", tensor
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield "gradients", parameter.grad


def _name(thing):
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _tensors_in(value):
    """Every tensor in nested lists, dicts and DeepSpeed's bucket objects (which keep theirs in `buffer`)."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from _tensors_in(part)
    elif hasattr(value, "buffer") and not isinstance(value, torch.nn.Module):
        yield from _tensors_in(value.buffer)


# --- torch


def storage_key(storage: torch.UntypedStorage) -> int:
    """A number that is the same for all Python objects of one storage, as long as that lives."""
    return storage._cdata


def tensors_among(*values: object) -> list[torch.Tensor]:
    """The tensors in nested arguments or results.

    A ledger asks for every operation's, and nearly always there is one: torch's general search would take
    longer than the operation.
    """
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (tuple, list):
            found += tensors_among(*value)
        elif value is not None:
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return found


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What a DTensor, as FSDP2's parameters are, holds on this rank: itself it has no memory, though its
    storage says the size of the whole."""
    return getattr(tensor, "_local_tensor", tensor)


_told_of_resizing = []


def tell_of_resizing(listener: Callable[[torch.UntypedStorage], None]) -> Callable[[], None]:
    """Call `listener(storage)` after every `UntypedStorage.resize_`, which no operator shows: so FSDP2 frees
    and takes gathered parameters.

    Returns a function that ends it.
    """
    if not _told_of_resizing:
        original = torch.UntypedStorage.resize_

        def resize_(storage, size):
            result = original(storage, size)
            for one in list(_told_of_resizing):
                one(storage)
            return result

        resize_.original = original
        torch.UntypedStorage.resize_ = resize_
    _told_of_resizing.append(listener)

    def end():
        _told_of_resizing.remove(listener)
        if not _told_of_resizing:
            torch.UntypedStorage.resize_ = torch.UntypedStorage.resize_.original

    return end


def unseen() -> AbstractContextManager:
    """A context in which no ledger sees the tensors that are made."""
    return _disable_current_modes()


def open_modes() -> list[TorchDispatchMode]:
    """The modes that see every operator now, for instance ledgers, the outermost first."""
    return _get_current_dispatch_mode_stack()


def in_backward() -> bool:
    """Whether autograd is at work in this thread."""
    return torch._C._current_graph_task_id() != -1


def clear_workspaces() -> None:
    """Give back what matrix products on a GPU keep for themselves."""
    torch._C._cuda_clearCublasWorkspaces()


def grow_segments() -> None:
    """Let torch's allocator for GPUs extend what it holds in the place of taking new pieces
    (`expandable_segments:True`): without gaps between blocks of unequal sizes.  As the environment variable
    PYTORCH_CUDA_ALLOC_CONF does, but from within a rank."""
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


# --- DeepSpeed


def is_partitioned(parameter: torch.nn.Parameter) -> bool:
    """Whether ZeRO-3 has divided a parameter among the ranks."""
    return hasattr(parameter, "ds_status")


def is_gathered(parameter: torch.nn.Parameter) -> bool:
    """Whether a parameter that ZeRO-3 has divided is whole on this rank now."""
    return parameter.ds_status.name == "AVAILABLE"


def whole_shape(parameter: torch.nn.Parameter) -> torch.Size:
    """The shape that such a parameter has when it is gathered."""
    return parameter.ds_shape


def group_patience(group: torch.distributed.ProcessGroup | None = None) -> float:
    """Seconds after which a collective of a process group on the CPU gives up; by default of the group of all
    ranks."""
    group = group or torch.distributed.group.WORLD
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def limit_patience(group: torch.distributed.ProcessGroup, seconds: float) -> None:
    """Let the collectives of a process group give up after so many seconds, from now on; the same on every
    rank."""
    from datetime import timedelta

    from torch.distributed import distributed_c10d

    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


# Operations between two ranks, and the argument that says who the other one is.
BETWEEN_TWO = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}


def ranks_of(operation: str, given: Mapping[str, object]) -> tuple[int, ...]:
    """The ranks that take part in a message, as a tuple: those of its process group, or the two between which
    it passes.

    Args:
        operation: its name, as "all_reduce".
        given: the arguments of its call, {name: value}.
    """
    dist, group = torch.distributed, given.get("group")
    group = dist.group.WORLD if group is None else group
    if operation not in BETWEEN_TWO:
        return tuple(dist.get_process_group_ranks(group))
    other = given.get(BETWEEN_TWO[operation])
    if other is None and (place := given.get(f"group_{BETWEEN_TWO[operation]}")) is not None:
        other = dist.get_global_rank(group, place)
    return tuple(sorted({dist.get_rank(), dist.get_rank() if other is None else other}))


def log_messages(append: Callable[[str, int, tuple[int, ...]], None]) -> Callable[[], None]:
    """Hand every message of DeepSpeed's communication to `append(operation, bytes, group)`; returns a
    function that ends it.

    The group is a tuple, of the ranks that take part.  It stands in the place of the logger's own method,
    which keeps no group: its caller, in DeepSpeed, has the operation's arguments at hand.
    """
    import deepspeed.comm as comm

    logger = comm.comm.comms_logger

    def take(operation, name, seconds, size):
        append(operation, size, ranks_of(operation, sys._getframe(1).f_locals["func_args"]))

    def end():
        del logger.append  # the class's own again
        comm.configure(**before)

    before = {"enabled": logger.enabled, "prof_all": logger.prof_all, "verbose": logger.verbose}
    comm.configure(enabled=True, prof_all=True, verbose=False)
    logger.append = take
    return end


# torch's own functions that send, {name: the argument with this rank's message, a tensor or several}.
# `isend` is missing, since what is batched must be torch's very own, and what DistributedDataParallel sends,
# which no function of Python does.
PLAIN_MESSAGES = {
    "all_reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_single": "input_tensor",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "broadcast": "tensor",
    "reduce": "tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_single": "input",
    "reduce_scatter_tensor": "input",
    "send": "tensor",
}


def log_plain_messages(append: Callable[[str, int, tuple[int, ...]], None]) -> Callable[[], None]:
    """Hand every message that a program sends by torch.distributed itself to `append(operation, bytes,
    group)`; returns a function that ends it.

    Those of DeepSpeed's communication, which sends by the same functions, are left to `log_messages`.
    """
    import torch.distributed as dist

    def counted(name, function, argument):
        place = inspect.signature(function)

        @functools.wraps(function)
        def send(*args, **kwargs):
            result = function(*args, **kwargs)
            if not sys._getframe(1).f_globals.get("__name__", "").startswith("deepspeed.comm"):
                given = place.bind(*args, **kwargs).arguments
                size = sum(tensor.numel() * tensor.element_size() for tensor in _tensors_in(given[argument]))
                if dist.get_rank(given.get("group")) >= 0:
                    append(name, size, ranks_of(name, given))
            return result

        return send

    before = {name: getattr(dist, name) for name in PLAIN_MESSAGES if hasattr(dist, name)}
    for name, function in before.items():
        setattr(dist, name, counted(name, function, PLAIN_MESSAGES[name]))

    def end():
        for name, function in before.items():
            setattr(dist, name, function)

    return end


def places_that_send(names: Collection[str]) -> list[tuple[type | ModuleType, str]]:
    """[(owner, name)] of every function through which messages go: DeepSpeed's back end, and torch's own
    functions, called by themselves.

    torch checks that what is batched is its very own `isend` or `irecv`, and these are left alone.
    """
    from deepspeed.comm.torch import TorchBackend

    found = [(TorchBackend, name) for name in names if name in vars(TorchBackend)]
    return found + [
        (torch.distributed, name)
        for name in names
        if hasattr(torch.distributed, name) and name not in ("isend", "irecv")
    ]


def wrap_instructions(
    engine: PipelineEngine, wrap: Callable[[str, Callable], Callable]
) -> Callable[[], None]:
    """Replace what a pipeline engine executes: `wrap(name, instruction)` gives a function to be called as
    `instruction` is, with the engine.

    Returns a function that ends it.
    """
    before = vars(engine).get("_INSTRUCTION_MAP")
    engine._INSTRUCTION_MAP = {
        kind: wrap(kind.__name__, instruction) for kind, instruction in engine._INSTRUCTION_MAP.items()
    }

    def end():
        if before is None:
            del engine._INSTRUCTION_MAP  # the class's own again
        else:
            engine._INSTRUCTION_MAP = before

    return end
