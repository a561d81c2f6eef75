"""The private attributes of torch and DeepSpeed that measuring and recording need; the rest of
`helpers/tools/measure` touches none whose name begins with an underscore.

Elsewhere a rehearsal replaces many, listed in `helpers/tools/rehearsal/patches.py`; its modules,
`tools/launcher/parcel.py` and `waits.py` read others of torch.  Written against torch 2.11, DeepSpeed 0.19;
`tests/measure/test_internals.py` names each attribute that a new version no longer has.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from deepspeed import PipelineEngine

# Methods that give what a sparse tensor consists of; the public ones of COO refuse equal indices.
SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
NESTED = ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
# torch's operators that send or receive, `torch.ops.c10d`: DeepSpeed's name of the operation, and the
# argument that holds this rank's message.
MESSAGES = {
    "allreduce_": ("all_reduce", "tensors"),
    "allreduce_coalesced_": ("all_reduce_coalesced", "tensors"),
    "allgather_": ("all_gather", "input_tensors"),
    "_allgather_base_": ("all_gather_into_tensor", "input_tensor"),
    "allgather_coalesced_": ("all_gather_coalesced", "input_list"),
    "allgather_into_tensor_coalesced_": ("all_gather_into_tensor", "inputs"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter_tensor", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_tensor", "inputs"),
    "reduce_": ("reduce", "tensors"),
    "broadcast_": ("broadcast", "tensors"),
    "gather_": ("gather", "input_tensors"),
    "scatter_": ("scatter", "output_tensors"),
    "alltoall_": ("all_to_all", "input_tensors"),
    "alltoall_base_": ("all_to_all_single", "input"),
    "send": ("send", "tensors"),
    "recv_": ("recv", "tensors"),
    "recv_any_source_": ("recv", "tensors"),
    "barrier": ("barrier", None),
    "monitored_barrier_": ("monitored_barrier", None),
}
Future = torch._C.Future  # of a message that is under way
# Namespace and operators that wait for what a functional collective returned.
WAITS = ("_c10d_functional", ("wait_tensor",))


# --- tensors and storages


def storage_key(storage: torch.UntypedStorage) -> int:
    """A number that is the same for all Python objects of one storage, as long as that lives."""
    return storage._cdata


def tensors_among(*values: object) -> list[torch.Tensor]:
    """The tensors in nested arguments or results.

    A ledger asks for every operation's, and nearly always there is one: torch's general search alone would
    take longer than the operation.
    """
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in (tuple, list):
            tensors += tensors_among(*value)
        elif value is not None:
            tensors += [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return tensors


def parts_among(*values: object) -> list[torch.Tensor]:
    """The tensors in which those in nested arguments keep their numbers: themselves; the indices and values
    of sparse ones; what subclasses such as DTensor or a jagged tensor wrap; and what quantized and nested
    tensors keep besides."""
    return [part for tensor in tensors_among(*values) for part in _parts(tensor)]


def _parts(tensor):
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return parts_among(*(getattr(tensor, name) for name in names))
    if tensor.layout is not torch.strided:
        return [getattr(tensor, name)() for name in SPARSE.get(tensor.layout, ())] or [tensor]
    if tensor.is_nested:
        return [tensor, *(getattr(tensor, name)() for name in NESTED)]
    if tensor.is_quantized and "per_channel" in str(tensor.qscheme()):
        return [tensor, tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
    return [tensor]


def storages_among(*values: object, device: str | None = None) -> list[torch.UntypedStorage]:
    """The storages of all tensors in nested arguments, or of those on one type of device; a warning names
    those that torch hides, as MKLDNN's."""
    storages = []
    for part in parts_among(*values):
        try:
            if device is None or part.device.type == device:
                storages.append(part.untyped_storage())
        except NotImplementedError:
            text = f"tensors of {part.layout} are not counted: torch gives no access to their memory"
            warnings.warn(text, stacklevel=2)
    return storages


def bytes_of(*values: object) -> int:
    """Bytes of the elements of all tensors in nested arguments: of a view, only those that it shows."""
    return sum(part.numel() * part.element_size() for part in parts_among(*values))


def unseen() -> AbstractContextManager:
    """A context in which no ledger sees the tensors that are made."""
    return _disable_current_modes()


def open_modes() -> list[TorchDispatchMode]:
    """The modes that see every operator now, for instance ledgers, the outermost first."""
    return _get_current_dispatch_mode_stack()


def written_and_read(operator: object, values: tuple, options: dict) -> tuple[list, list]:
    """The arguments of an operator of torch, (those into which it writes, all others)."""
    arguments = operator._schema.arguments
    given = [*zip(arguments, values), *((one, options[one.name]) for one in arguments if one.name in options)]
    sides = ([], [])
    for argument, value in given:
        sides[not (argument.alias_info and argument.alias_info.is_write)].append(value)
    return sides


def in_backward() -> bool:
    """Whether autograd is at work in this thread, as a rehearsal asks."""
    return torch._C._current_graph_task_id() != -1


def clear_workspaces() -> None:
    """Give back what matrix products on a GPU keep for themselves."""
    torch._C._cuda_clearCublasWorkspaces()


def grow_segments() -> None:
    """Let torch's allocator for GPUs extend its segments, without gaps between blocks of unequal sizes: from
    within a rank what PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True does before it starts."""
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


# --- what stands in the place of something else; each function returns one that puts it back


def replaced(owner: object, name: str, new: object) -> Callable[[], None]:
    """Set an attribute of an object or a class."""
    of_its_own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, new)
    return partial(setattr, owner, name, before) if of_its_own else partial(delattr, owner, name)


def tell_of_resizing(listener: Callable[[torch.UntypedStorage], None]) -> Callable[[], None]:
    """Call `listener(storage)` after every `UntypedStorage.resize_`, which no operator shows: so FSDP2 frees
    and takes gathered parameters."""
    plain = torch.UntypedStorage.resize_

    def resize_(storage, size):
        result = plain(storage, size)
        listener(storage)
        return result

    return replaced(torch.UntypedStorage, "resize_", resize_)


def wrap_instructions(
    engine: PipelineEngine, wrap: Callable[[str, Callable], Callable]
) -> Callable[[], None]:
    """Replace what a pipeline engine executes: `wrap(name, instruction)` gives a function to be called as
    `instruction` is, with the engine."""
    instructions = engine._INSTRUCTION_MAP.items()
    wrapped = {kind: wrap(kind.__name__, instruction) for kind, instruction in instructions}
    return replaced(engine, "_INSTRUCTION_MAP", wrapped)


def stand_before(
    namespace: str, operators: Iterable[str], around: Callable[[str, dict, Callable[[], object]], object]
) -> Callable[[], None]:
    """Call `around(operator, {argument: value}, call)` in the place of torch's operators, in every thread and
    whoever calls them, C++ too; it must return what `call()` does.

    The kernel has the dispatch key BackendSelect, which lies below torch's modes, autograd and inference
    mode, and which these operators do not use otherwise.  Other operators are as fast as before.
    """
    key, library = torch._C.DispatchKey.BackendSelect, torch.library.Library(namespace, "IMPL")
    below = torch._C._dispatch_keyset_full_after(key)

    def kernel(name, operator):
        names = [argument.name for argument in operator._schema.arguments]

        def run(keys, *values, **options):
            arguments = dict(zip(names, values)) | options
            return around(name, arguments, lambda: operator.redispatch(keys & below, *values, **options))

        return run

    for name in operators:
        operator = getattr(getattr(torch.ops, namespace), name).default
        library.impl(name, kernel(name, operator), key.name, with_keyset=True)
    return library._destroy


def finished(operator: str, arguments: dict[str, object]) -> object:
    """What one of the operators in MESSAGES returns, with a request that has ended, where nothing is sent."""
    future = Future([])
    future.set_result(None)
    request = torch._C._distributed_c10d._create_work_from_future(future).boxed()
    with_tensors = len(getattr(torch.ops.c10d, operator).default._schema.returns) > 1
    return (next(iter(arguments.values())), request) if with_tensors else request


def caller(depth: int) -> tuple[str, str]:
    """(module, function) of the Python code so many calls above the one that asks."""
    frame = sys._getframe(depth + 1)
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name


# --- groups of ranks, and parameters under ZeRO-3


def group_patience(group: torch.distributed.ProcessGroup | None = None) -> float:
    """Return the seconds after which a collective of a process group on the CPU gives up; by default of the
    group of all ranks."""
    group = group or torch.distributed.group.WORLD
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def limit_patience(group: torch.distributed.ProcessGroup, seconds: float) -> None:
    """Let the collectives of a process group give up after so many seconds, from now on; the same on every
    rank."""
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def is_partitioned(parameter: torch.nn.Parameter) -> bool:
    """Whether ZeRO-3 has divided a parameter among the ranks."""
    return hasattr(parameter, "ds_status")


def is_gathered(parameter: torch.nn.Parameter) -> bool:
    """Whether a parameter that ZeRO-3 has divided is whole on this rank now."""
    return parameter.ds_status.name == "AVAILABLE"


def whole_shape(parameter: torch.nn.Parameter) -> torch.Size:
    """The shape that such a parameter has when it is gathered."""
    return parameter.ds_shape
