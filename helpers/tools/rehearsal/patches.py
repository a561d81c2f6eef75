"""All that a rehearsal replaces in torch and DeepSpeed, each with what needs it.  Nothing outside of the
rehearsal's own process is touched.

`tests/rehearsal/test_patches.py` names each attribute that a new version no longer has; so does a rehearsal
itself.
"""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch
from helpers.tools.measure.internals import in_backward
from helpers.tools.rehearsal import gpu, many
from helpers.tools.rehearsal.asked import questions
from helpers.tools.rehearsal.fake import DEVICE, KNOWN, raised, without_mode
from helpers.tools.rehearsal.pipelines import Mail, exchanging

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor
    from helpers.tools.measure.ledger import OutOfMemory


@dataclass(frozen=True)
class Pose:
    """Who is rehearsed.

    Attributes:
        rank, ranks: which of how many.
        device: "cpu" or "cuda".
        memory: bytes of its device, or None where nothing was said.
        mail: a folder in which neighbours of a pipeline leave shapes.
    """

    rank: int
    ranks: int
    device: str
    memory: int | None
    mail: str


@dataclass(frozen=True)
class Patch:
    """`owner.name` becomes `instead`, because of `need`."""

    owner: str
    name: str
    instead: object
    need: str

    def apply(self) -> None:
        """Replace it.

        Raises:
            AttributeError: there is no such attribute; names it.
        """
        found = owner(self.owner)
        if not hasattr(found, self.name):
            raise AttributeError(
                f"{self.owner} has no {self.name} any more, which rehearsals replace: {self.need}"
            )
        setattr(found, self.name, self.instead)


def owner(name: str) -> object:
    """The module or class of a dotted name."""
    with suppress(ModuleNotFoundError):
        return importlib.import_module(name)
    module, _, attribute = name.rpartition(".")
    return getattr(owner(module), attribute)


def patches(pose: Pose) -> list[Patch]:
    """Those that a pose needs, in the order in which they are applied."""
    return [
        *of_torch(),
        *of_the_ledger(pose),
        *of_messages(pose),
        *of_deepspeed(pose),
        *of_many(),
        *(of_gpu(pose) if pose.device == "cuda" else ()),
    ]


# --- torch


def of_torch() -> list[Patch]:
    fake = "torch._subclasses.fake_tensor"
    return [
        Patch(
            fake, "CONSTANT_NUMEL_LIMIT", KNOWN, "torch keeps the numbers of tensors with one element only"
        ),
        Patch(
            "torch._subclasses.fake_tensor.FakeTensor",
            "__reduce_ex__",
            reduced,
            "a tensor that the function returns has to travel",
        ),
        Patch(
            "torch._subclasses.fake_tensor.FakeTensor",
            "__format__",
            formatted,
            "torch formats the number of its own class of tensors alone",
        ),
        Patch(
            "torch.nn.Module",
            "_apply",
            apply_in_place,
            "module.to(...) refuses parameters without numbers that anything refers to",
        ),
        Patch("torch", "save", no_numbers, "there is nothing to be saved"),
        Patch(
            "torch._subclasses",
            "FakeTensor",
            gpu.Idle,
            "transformers takes a tensor of this class for one that is traced",
        ),
    ]


def reduced(self: FakeTensor, protocol: int) -> tuple:
    return without_mode(self).__reduce_ex__(protocol)


def formatted(self: FakeTensor, specification: str) -> str:
    return format(self.item() if specification and self.dim() == 0 else repr(self), specification)


def no_numbers(*arguments: object, **options: object) -> NoReturn:
    raise RuntimeError(
        "a rehearsal has no numbers that could be saved: leave saving out of the function that is rehearsed"
    )


def apply_in_place(
    self: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    """`torch.nn.Module._apply` that gives every parameter new data and keeps the parameter."""
    if recurse:
        for child in self.children():
            child._apply(function)
    with torch.no_grad():
        for parameter in self._parameters.values():
            if parameter is not None:
                set_data(parameter, function(parameter.data))
                if parameter.grad is not None:
                    set_data(parameter.grad, function(parameter.grad.data))
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = function(buffer)
    return self


_plain_data = torch.Tensor.data


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """`tensor.data = value`, also across devices: torch does it from the CPU to a GPU, but not to a device
    that a program has added."""
    if tensor.device.type == value.device.type:
        _plain_data.__set__(tensor, value)
    else:
        torch._C._swap_tensor_impl(tensor, value.detach().requires_grad_(tensor.requires_grad))
    if hasattr(tensor, "_fake_device"):
        tensor._fake_device = value.device


# --- the ledger


def of_the_ledger(pose: Pose) -> list[Patch]:
    ledger = "helpers.tools.measure.ledger"
    found = [
        Patch(
            ledger,
            "SETTLED",
            0.0,
            "nothing dies by itself where there is one thread: a snapshot has nothing to wait for",
        )
    ]
    often = "half of what passes a ledger asks for a device, which each tensor of a rehearsal knows by itself"
    found.append(
        Patch(
            f"{ledger}.Ledger", "__torch_dispatch__", passing(owner(ledger).Ledger.__torch_dispatch__), often
        )
    )
    late = (
        "an error in a backward pass on a device that a program has added ends the process: what a "
        "ledger refuses there is said after it"
    )
    found.append(Patch(f"{ledger}.Ledger", "_refusal", said_later(owner(ledger).Ledger._refusal), late))
    for place in ("torch.autograd", "torch.autograd.graph"):
        found.append(Patch(place, "_engine_run_backward", saying(owner(place)._engine_run_backward), late))
    if pose.memory is not None:
        limited = with_limit(owner(ledger).Ledger.__init__, pose)
        found.append(
            Patch(
                f"{ledger}.Ledger",
                "__init__",
                limited,
                "a rank of which it was said how much memory it has is refused more",
            )
        )
    return found


def passing(plain: Callable) -> Callable:
    """`Ledger.__torch_dispatch__` that answers the question for a device, and has not around it what torch
    puts there for its compiler."""
    plain = inspect.unwrap(plain)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is DEVICE:
            return args[0].device
        return plain(self, function, types, args, kwargs)

    return __torch_dispatch__


def said_later(plain: Callable[..., OutOfMemory]) -> Callable[..., OutOfMemory | None]:
    """`Ledger._refusal`, which gives None during a backward pass, where nothing may be raised."""

    def refusal(self, record, function):
        error = plain(self, record, function)
        if not in_backward():
            return error
        if not raised:
            raised.append(error)
        return None

    return refusal


def saying(plain: Callable) -> Callable:
    """A backward pass, and after it what was refused meanwhile."""

    def run_backward(*arguments, **options):
        inner = in_backward()  # of a checkpoint that computes its block again by a backward pass of its own
        if not inner:
            raised.clear()
        found = plain(*arguments, **options)
        if raised and not inner:
            raise raised.pop()
        return found

    return run_backward


def with_limit(plain: Callable[..., None], pose: Pose) -> Callable[..., None]:
    """A ledger of the posing device that was given no limit takes the pose's."""
    posing = gpu.GPU if pose.device == "cuda" else "cpu"

    def __init__(self, device=None, limit=None):
        plain(self, device, limit)
        if limit is None and self.device == posing:
            self.limit = pose.memory

    return __init__


# --- messages


def of_messages(pose: Pose) -> list[Patch]:
    """torch's back end "fake" takes messages and sends none; what would wait for an object of another rank is
    answered here."""
    c10d = "torch.distributed.distributed_c10d"
    begin, group = in_vain(pose), anywhere(torch.distributed.new_group)
    found = [
        ("init_process_group", begin, "a program that names a back end would wait for the other ranks"),
        ("new_group", group, "a program that names a back end for a group would wait for its other ranks"),
        (
            "broadcast_object_list",
            left_as_they_are,
            "it would read another rank's object from numbers",
        ),
        ("all_gather_object", everyone_says_the_same, "it would read other ranks' objects from numbers"),
    ]
    if pose.device == "cpu":
        copying = "gloo reduces in a copy of what is to be scattered, which is gone when the call returns"
        found += [
            (name, reducing_in_a_copy(getattr(torch.distributed, name)), copying)
            for name in SCATTERING
            if hasattr(torch.distributed, name)
        ]
    return [
        Patch(place, name, instead, need)
        for name, instead, need in found
        for place in (c10d, "torch.distributed")
    ]


SCATTERING = ("reduce_scatter_tensor", "_reduce_scatter_base")


def reducing_in_a_copy(
    plain: Callable[..., torch.distributed.Work | None],
) -> Callable[..., torch.distributed.Work | None]:
    def reduce_scatter(output, input, *arguments, **options):
        copy = input.clone()
        work = plain(output, input, *arguments, **options)
        del copy
        return work

    return reduce_scatter


def in_vain(pose: Pose) -> Callable[..., None]:
    """`init_process_group` with the back end that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    plain = torch.distributed.init_process_group

    def init_process_group(*arguments, **options):
        plain("fake", rank=pose.rank, world_size=pose.ranks, store=FakeStore())

    return init_process_group


def anywhere(
    plain: Callable[..., torch.distributed.ProcessGroup],
) -> Callable[..., torch.distributed.ProcessGroup]:
    """`new_group` with the same back end as all ranks have together."""

    def new_group(ranks=None, timeout=None, backend=None, *arguments, **options):
        return plain(ranks, timeout, None, *arguments, **options)

    return new_group


def left_as_they_are(*arguments: object, **options: object) -> None:
    """`broadcast_object_list`: this rank's own objects stand for those of the rank that would send."""


def everyone_says_the_same(
    object_list: list, obj: object, group: torch.distributed.ProcessGroup | None = None
) -> None:
    """`all_gather_object`: the names are torch's."""
    object_list[:] = [obj] * len(object_list)


# --- DeepSpeed


def of_deepspeed(pose: Pose) -> list[Patch]:
    zero = "deepspeed.runtime.zero"
    send, receive = exchanging(Mail(pose.mail))
    compared = (
        "ZeRO-3 checks that all ranks are at the same place: what it sends is sent, and what rank 0 "
        "would answer nobody knows"
    )
    told = "a pipeline's stage reads from numbers which shapes it will be sent"
    return [
        *(
            Patch(
                place,
                "_update_scale",
                scaling(owner(place)._update_scale),
                "no gradient says whether it overflowed",
            )
            for place in SCALING
        ),
        *(
            Patch(f"{zero}.{module}", "assert_ints_same_as_other_ranks", agreed, compared)
            for module in ASSERTING
        ),
        Patch(
            "deepspeed.runtime.engine",
            "compare_tensors_in_structures",
            lambda mine, other: True,
            "AutoTP compares its batch with another rank's",
        ),
        Patch("deepspeed.runtime.pipe.engine.PipelineEngine", "_send_tensor_meta", send, told),
        Patch("deepspeed.runtime.pipe.engine.PipelineEngine", "_recv_tensor_meta", receive, told),
    ]


SCALING = (
    "deepspeed.runtime.fp16.fused_optimizer.FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer.FP16_UnfusedOptimizer",
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
)


def scaling(plain: Callable[..., None]) -> Callable[..., None]:
    """An optimizer that finds its loss scale: where gradients overflow a step is left out, and none does
    here."""

    def update_scale(self, *arguments, **options):
        if getattr(self, "loss_scale_config", self).dynamic_loss_scale:
            questions.scaled()
        return plain(self, *arguments, **options)

    return update_scale


ASSERTING = ("partition_parameters", "partitioned_param_coordinator", "stage3")


def agreed(numbers: list[int]) -> None:
    """The messages of ZeRO-3's check, without its verdict."""
    from deepspeed.runtime.zero import utils

    with suppress(RuntimeError):
        utils.assert_lst_len_same_as_other_ranks(numbers)
    utils.get_lst_from_rank0(numbers)


def of_many() -> list[Patch]:
    zero, often = "deepspeed.runtime.zero", "ZeRO-3 does it for every rank, whenever it gathers or scatters"
    handle = f"{zero}.partition_parameters.AllGatherCoalescedHandle"
    return [
        Patch(
            f"{zero}.stage3",
            "reduce_scatter_coalesced",
            many.scattering(owner(f"{zero}.stage3").reduce_scatter_coalesced),
            often,
        ),
        Patch(handle, "wait", many.gathering(owner(handle).wait), often),
        Patch("torch.Tensor", "narrow", many.narrowing(torch.Tensor.narrow), often),
    ]


# --- GPU


def of_gpu(pose: Pose) -> list[Patch]:
    """What makes the posing device one; `gpu` has the answers."""
    from deepspeed.accelerator import get_accelerator
    from torch._subclasses.fake_tensor import FakeTensor

    optimizer = "torch.optim.optimizer"
    foreach = "Adam takes all tensors of a GPU at once where they are of a type that it knows"
    attention = gpu.attention(torch.nn.functional.scaled_dot_product_attention)
    posing = type("Posing", (type(get_accelerator()),), gpu.answers(pose.memory or gpu.MEMORY))
    return [
        Patch(
            "deepspeed.accelerator.real_accelerator.ds_accelerator",
            "__class__",
            posing,
            "DeepSpeed asks its accelerator what a GPU would answer",
        ),
        Patch(
            "torch.Tensor",
            "data",
            property(_plain_data.__get__, set_data),
            "ZeRO puts a parameter's data on another device",
        ),
        Patch(
            "torch.Tensor",
            "record_stream",
            lambda self, stream: None,
            "ZeRO tells torch's allocator which stream uses a tensor",
        ),
        Patch("torch.nn.functional", "scaled_dot_product_attention", attention, "a GPU has other kernels"),
        Patch(
            optimizer,
            "_foreach_supported_types",
            [*owner(optimizer)._foreach_supported_types, FakeTensor],
            foreach,
        ),
        Patch(
            "torch.utils._foreach_utils",
            "_foreach_supported_types",
            [torch.Tensor, torch.nn.Parameter, FakeTensor],
            foreach,
        ),
    ]


def add_device() -> None:
    """Make torch know the device of `gpu`; once in a process."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(gpu.GPU, backend_module=gpu.DeviceModule())
    for operation in WHOLE_ON_A_GPU:
        OPERATIONS.impl(operation, torch.library.fallthrough_kernel, "AutogradPrivateUse1")


# torch puts these together from several operations, each with a result of its own, on every device that has
# no kernel for them; a GPU has one.
WHOLE_ON_A_GPU = ("silu_backward",)
OPERATIONS = torch.library.Library("aten", "IMPL")


# --- environment


def variables(pose: Pose) -> dict[str, str]:
    """What `deepspeed` and `torchrun` would have set for this rank; on the CPU all ranks share a host, as
    `launch` starts them."""
    local, here = (
        (pose.rank % gpu.GPUS, min(pose.ranks, gpu.GPUS))
        if pose.device == "cuda"
        else (pose.rank, pose.ranks)
    )
    found = {
        "RANK": pose.rank,
        "WORLD_SIZE": pose.ranks,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": here,
        "LOCAL_SIZE": here,
    }
    return {name: str(value) for name, value in found.items()}


def put_on(pose: Pose) -> None:
    """Become the rank of a pose, in a process of its own."""
    os.environ.update(variables(pose))
    warnings.filterwarnings(
        "ignore", "Accessing the data pointer of FakeTensor", UserWarning
    )  # DeepSpeed looks whether memory is aligned
    if pose.device == "cuda":
        add_device()
    for patch in patches(pose):
        patch.apply()
