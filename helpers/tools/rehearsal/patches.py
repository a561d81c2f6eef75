"""All that a rehearsal replaces in torch and DeepSpeed, each with what needs it.

Private attributes of both are touched here, and where `tests/rehearsal/test_patches.py` says so.  Nothing
outside of the rehearsal's own process changes.  That test names each attribute that a new version no longer
has; so does a rehearsal itself.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from types import SimpleNamespace

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ..place import NAME
from . import autoep, gpu, many, pinning, pipelines, replacements, requests, ulysses, working
from .fake import KNOWN

LEDGER = f"{NAME}.measure.ledger"


@dataclass(frozen=True)
class Pose:
    """Which rank is rehearsed.

    Attributes:
        rank, ranks, device: which of how many, on "cpu" or "cuda".
        memory: bytes that its device gives, or None for as many as are wanted.
        mail: a folder in which neighbours of a pipeline leave shapes.
        capacity: bytes that its device has, as DeepSpeed is told that asks.
        gpus_per_host: GPUs of a machine.
    """

    rank: int
    ranks: int
    device: str
    memory: int | None
    mail: str
    capacity: float = gpu.MEMORY
    gpus_per_host: int = gpu.GPUS


@dataclass(frozen=True)
class Patch:
    """`owner.name` becomes `instead`, because of `need`."""

    owner: str
    name: str
    instead: object
    need: str

    def apply(self) -> None:
        """Replace it; an AttributeError names what is not there any more."""
        found = resolve_name(self.owner)
        if not hasattr(found, self.name):
            gone = f"{self.owner} has no {self.name} any more, which rehearsals replace"
            raise AttributeError(f"{gone}: {self.need}")
        setattr(found, self.name, self.instead)


def patches(pose: Pose) -> list[Patch]:
    """Those that a pose needs, in the order in which they are applied."""
    rows = [*of_torch(), *of_the_ledger(pose), *of_messages(pose), *of_deepspeed(pose), *of_experts(pose)]
    return [Patch(*row) for row in rows + (of_gpu(pose) if pose.device == "cuda" else [])]


def around(place: str, name: str, replacement: Callable, need: str, *more: object) -> tuple:
    """A patch whose replacement calls what it replaces: it is given that, and then `more`."""
    plain = inspect.unwrap(getattr(resolve_name(place), name))

    def replaced(*arguments, **options):
        return replacement(plain, *more, *arguments, **options)

    return place, name, replaced, need


def of_torch() -> list[tuple]:
    classes = "torch._subclasses.fake_tensor"
    fake = f"{classes}.FakeTensor"
    moving = "module.to(...) refuses parameters without numbers that anything refers to"
    copied = "a parameter without numbers is no `Parameter` by its class, and would copy what others gave it"
    traced = "transformers takes a tensor of this class for one that is traced"
    return [
        (classes, "CONSTANT_NUMEL_LIMIT", KNOWN, "torch keeps the numbers of one element alone"),
        (fake, "__reduce_ex__", replacements.reduced, "a tensor that the function returns has to travel"),
        around(fake, "__deepcopy__", replacements.deep_copied, copied),
        (fake, "__format__", replacements.formatted, "torch formats numbers of its own class alone"),
        ("torch.nn.Module", "_apply", replacements.apply_in_place, moving),
        ("torch", "save", replacements.no_numbers, "there is nothing to be saved"),
        ("torch._subclasses", "FakeTensor", gpu.Idle, traced),
    ]


def of_the_ledger(pose: Pose) -> list[tuple]:
    ledger = f"{LEDGER}.Ledger"
    still = "nothing dies by itself where there is one thread: a snapshot has nothing to wait for"
    often = "half of what passes a ledger asks for a device, which each tensor of a rehearsal knows by itself"
    late = "an error in a backward pass on an added device ends the process: it is raised after the pass"
    limited = "a rank of which it was said how much memory it has is refused more"
    device = gpu.GPU if pose.device == "cuda" else "cpu"
    dispatch = inspect.unwrap(resolve_name(ledger).__torch_dispatch__)
    return [
        (LEDGER, "SETTLED", 0.0, still),
        (ledger, "__torch_dispatch__", replacements.dispatching(dispatch, device, requests.operated), often),
        around(ledger, "_refusal", replacements.refusal, late),
        around("torch.autograd", "_engine_run_backward", replacements.run_backward, late),
        around("torch.autograd.graph", "_engine_run_backward", replacements.run_backward, late),
        around(ledger, "__init__", replacements.begin, limited, device, pose.memory),
    ]


def of_messages(pose: Pose) -> list[tuple]:
    """What would wait for another rank is answered here."""
    waits, reads = "it would wait for the other ranks", "it would read another rank's object from numbers"
    copied = "gloo reduces in a copy of what is to be scattered, which is gone when the call returns"
    rows = [
        around("torch.distributed", "init_process_group", replacements.in_vain, waits, pose.rank, pose.ranks),
        around("torch.distributed", "new_group", replacements.anywhere, waits),
        ("torch.distributed", "broadcast_object_list", replacements.left_as_they_are, reads),
        ("torch.distributed", "all_gather_object", replacements.everyone_says_the_same, reads),
    ]
    for name in ("reduce_scatter_tensor", "_reduce_scatter_base") if pose.device == "cpu" else ():
        rows.append(around("torch.distributed", name, replacements.reducing_in_a_copy, copied))
    places = ("torch.distributed.distributed_c10d", "torch.distributed")
    return [(place, *row[1:]) for row in rows for place in places]


SCALING = (  # optimizers that find a loss scale
    "fp16.fused_optimizer.FP16_Optimizer",
    "fp16.unfused_optimizer.FP16_UnfusedOptimizer",
    "zero.stage_1_and_2.DeepSpeedZeroOptimizer",
    "zero.stage3.DeepSpeedZeroOptimizer_Stage3",
)
# DeepSpeed's own operators that work in place, and so leave nothing behind where there are no numbers
COMPILED = {
    "fused_adam": SimpleNamespace(multi_tensor_adam=working.adam),
    "cpu_adam": SimpleNamespace(
        **dict.fromkeys(("create_adam", "adam_update", "destroy_adam"), replacements.nothing)
    ),
}
ASSERTING = ("partition_parameters", "partitioned_param_coordinator", "stage3")


def of_deepspeed(pose: Pose) -> list[tuple]:
    runtime = "deepspeed.runtime"
    pipeline = f"{runtime}.pipe.engine.PipelineEngine"
    mail = pipelines.Mail(pose.mail)
    overflowed = "no gradient says whether it overflowed"
    compared = "ZeRO-3 checks that all ranks are at one place; what rank 0 would answer nobody knows"
    batch = "AutoTP compares its batch with another rank's"
    told = "a pipeline's stage reads from numbers which shapes it will be sent"
    asserted = "assert_ints_same_as_other_ranks", replacements.agreed, compared
    often = "ZeRO-3 does it for every rank, whenever it gathers or scatters"
    compiled = "they would be compiled, and called with the addresses of numbers"
    bounds = "AutoTP compares where the vocabulary's parts end, which each rank tells in numbers"
    shapes = "torch asks an operator of DeepSpeed's own for its shape, and so nothing is sent"
    entropy = "deepspeed.sequence.cross_entropy"
    handle = f"{runtime}.zero.partition_parameters.AllGatherCoalescedHandle"
    return [
        *(
            around(f"{runtime}.{place}", "_update_scale", replacements.update_scale, overflowed)
            for place in SCALING
        ),
        *((f"{runtime}.zero.{module}", *asserted) for module in ASSERTING),
        (f"{runtime}.engine", "compare_tensors_in_structures", lambda mine, other: True, batch),
        around(entropy, "_validate_vocab_shard_bounds", replacements.unchecked_bounds, bounds),
        (f"{runtime}.sequence_parallel.ulysses_sp", "_dim_zero_all_to_all", ulysses.exchanged, shapes),
        around(pipeline, "_send_tensor_meta", pipelines.send, told, mail),
        around(pipeline, "_recv_tensor_meta", pipelines.receive, told, mail),
        (f"{runtime}.zero.stage3", "reduce_scatter_coalesced", many.reduce_scatter_coalesced, often),
        around(handle, "wait", many.wait, often),
        around("torch.Tensor", "narrow", many.narrow, often),
        ("deepspeed.ops.op_builder.builder.OpBuilder", "_loaded_ops", COMPILED, compiled),
    ]


def of_experts(pose: Pose) -> list[tuple]:
    routed, compiled = "which expert gets a token depends on numbers", "Triton would compile it for a GPU"
    kernels = "deepspeed.moe.ep_kernels"
    plan = "deepspeed.module_inject.auto_ep_layer", "compute_split_plan"
    rows = [around(*plan, autoep.evenly, routed)]
    rows += [(kernels, f"fill_indices_{name}", autoep.places, routed) for name in ("cpu", "wrapper")]
    if pose.device == "cuda":
        rows += [
            (kernels, "gather_rows", autoep.gathered, compiled),
            (kernels, "permute_rows_supported", autoep.on_a_gpu, compiled),
            ("deepspeed.ops.triton_ops.swiglu_triton", "swiglu", autoep.swiglu, compiled),
        ]
    return rows


def of_gpu(pose: Pose) -> list[tuple]:
    """What makes the posing device one; `gpu` has the answers."""
    from deepspeed.accelerator import get_accelerator
    from torch._subclasses.fake_tensor import FakeTensor

    data = property(replacements.plain_data.__get__, replacements.set_data)
    answers = gpu.answers(pose.capacity, pose.gpus_per_host) | requests.answers(pose.capacity)
    answers |= pinning.answers()
    posing = type("Posing", (type(get_accelerator()),), answers)
    ledger, asked = f"{LEDGER}.Ledger", "what torch's allocator is asked for is noted"
    plain = torch.nn.functional.scaled_dot_product_attention
    types = [torch.Tensor, torch.nn.Parameter, FakeTensor]
    accelerator = "deepspeed.accelerator.real_accelerator.ds_accelerator"
    streams, attends = "ZeRO tells torch's allocator which stream uses a tensor", "a GPU has other kernels"
    foreach = "Adam takes all tensors of a GPU at once where they are of a type that it knows"
    return [
        (accelerator, "__class__", posing, "DeepSpeed asks its accelerator what a GPU would answer"),
        ("torch.Tensor", "data", data, "ZeRO puts a parameter's data on another device"),
        ("torch.Tensor", "record_stream", requests.use, streams),
        around(ledger, "_register_storage", requests.register_storage, asked),
        around(ledger, "_end", requests.end, asked),
        around(ledger, "mark", requests.mark, asked),
        around(ledger, "_settle", requests.settle, asked),
        ("torch.nn.functional", "scaled_dot_product_attention", gpu.attention(plain), attends),
        ("torch.optim.optimizer", "_foreach_supported_types", types, foreach),
        ("torch.utils._foreach_utils", "_foreach_supported_types", types, foreach),
    ]


# torch puts these together from several operations, each with a result of its own, on every device that has
# no kernel for them; a GPU has one.
WHOLE_ON_A_GPU = ("silu_backward",)
OPERATIONS = torch.library.Library("aten", "IMPL")


def put_on(pose: Pose) -> None:
    """Become the rank of a pose, in a process of its own: with the variables that `deepspeed` and `torchrun`
    would have set; on the CPU all ranks share a host, as `launch` starts them."""
    on_host = pose.gpus_per_host if pose.device == "cuda" else pose.ranks
    here = min(pose.ranks, on_host)
    numbers = {"RANK": pose.rank, "WORLD_SIZE": pose.ranks, "LOCAL_RANK": pose.rank % on_host}
    numbers |= {"LOCAL_WORLD_SIZE": here, "LOCAL_SIZE": here}
    os.environ.update({name: str(value) for name, value in numbers.items()})
    # DeepSpeed looks whether memory is aligned
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
    if pose.device == "cuda":
        gpu.DeviceModule.device_count = staticmethod(lambda: pose.gpus_per_host)
        _setup_privateuseone_for_python_backend(gpu.GPU, backend_module=gpu.DeviceModule())
        for operation in WHOLE_ON_A_GPU:
            OPERATIONS.impl(operation, torch.library.fallthrough_kernel, "AutogradPrivateUse1")
    for patch in patches(pose):
        patch.apply()
