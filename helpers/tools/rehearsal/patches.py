"""All that a rehearsal replaces in torch and DeepSpeed, each with what needs it.

Private attributes of both are touched here, and where `tests/rehearsal/test_patches.py` says so.  Nothing
outside of the rehearsal's own process changes.  That test names each attribute that a new version no longer
has; so does a rehearsal itself.
"""

from __future__ import annotations

import importlib
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass

import torch
from helpers.tools.rehearsal import gpu, many, replacements, requests
from helpers.tools.rehearsal.fake import KNOWN
from helpers.tools.rehearsal.pipelines import Mail, exchanging


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
    rows = [*of_torch(), *of_the_ledger(pose), *of_messages(pose), *of_deepspeed(pose), *of_many()]
    return [Patch(*row) for row in [*rows, *(of_gpu(pose) if pose.device == "cuda" else ())]]


def around(place: str, name: str, replacement: object, need: str, *more: object) -> tuple:
    """A patch whose replacement calls what it replaces."""
    return place, name, replacement(getattr(owner(place), name), *more), need


def of_torch() -> list[tuple]:
    classes = "torch._subclasses.fake_tensor"
    fake = f"{classes}.FakeTensor"
    moving = "module.to(...) refuses parameters without numbers that anything refers to"
    traced = "transformers takes a tensor of this class for one that is traced"
    return [
        (classes, "CONSTANT_NUMEL_LIMIT", KNOWN, "torch keeps the numbers of one element alone"),
        (fake, "__reduce_ex__", replacements.reduced, "a tensor that the function returns has to travel"),
        (fake, "__format__", replacements.formatted, "torch formats numbers of its own class alone"),
        ("torch.nn.Module", "_apply", replacements.apply_in_place, moving),
        ("torch", "save", replacements.no_numbers, "there is nothing to be saved"),
        ("torch._subclasses", "FakeTensor", gpu.Idle, traced),
    ]


def of_the_ledger(pose: Pose) -> list[tuple]:
    module = "helpers.tools.measure.ledger"
    ledger = f"{module}.Ledger"
    still = "nothing dies by itself where there is one thread: a snapshot has nothing to wait for"
    often = "half of what passes a ledger asks for a device, which each tensor of a rehearsal knows by itself"
    late = "an error in a backward pass on an added device ends the process: it is raised after the pass"
    rows = [
        (module, "SETTLED", 0.0, still),
        around(ledger, "__torch_dispatch__", replacements.passing, often, requests.recorder.product),
        around(ledger, "_refusal", replacements.said_later, late),
        around("torch.autograd", "_engine_run_backward", replacements.saying, late),
        around("torch.autograd.graph", "_engine_run_backward", replacements.saying, late),
    ]
    if pose.memory is not None:
        device = gpu.GPU if pose.device == "cuda" else "cpu"
        limited = "a rank of which it was said how much memory it has is refused more"
        rows.append(around(ledger, "__init__", replacements.with_limit, limited, device, pose.memory))
    return rows


def of_messages(pose: Pose) -> list[tuple]:
    """What would wait for another rank is answered here."""
    waits, reads = "it would wait for the other ranks", "it would read another rank's object from numbers"
    copied = "gloo reduces in a copy of what is to be scattered, which is gone when the call returns"
    names = {
        "init_process_group": (replacements.in_vain(pose.rank, pose.ranks), waits),
        "new_group": (replacements.anywhere(torch.distributed.new_group), waits),
        "broadcast_object_list": (replacements.left_as_they_are, reads),
        "all_gather_object": (replacements.everyone_says_the_same, reads),
    }
    for name in ("reduce_scatter_tensor", "_reduce_scatter_base") if pose.device == "cpu" else ():
        if plain := getattr(torch.distributed, name, None):
            names[name] = replacements.reducing_in_a_copy(plain), copied
    places = ("torch.distributed.distributed_c10d", "torch.distributed")
    return [(place, name, *row) for name, row in names.items() for place in places]


SCALING = (
    "deepspeed.runtime.fp16.fused_optimizer.FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer.FP16_UnfusedOptimizer",
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
)
ASSERTING = ("partition_parameters", "partitioned_param_coordinator", "stage3")


def of_deepspeed(pose: Pose) -> list[tuple]:
    engine = "deepspeed.runtime.pipe.engine.PipelineEngine"
    send, receive = exchanging(Mail(pose.mail))
    overflowed = "no gradient says whether it overflowed"
    compared = "ZeRO-3 checks that all ranks are at one place; what rank 0 would answer nobody knows"
    batch = "AutoTP compares its batch with another rank's"
    told = "a pipeline's stage reads from numbers which shapes it will be sent"
    names = [f"deepspeed.runtime.zero.{module}" for module in ASSERTING]
    return [
        *(around(place, "_update_scale", replacements.scaling, overflowed) for place in SCALING),
        *((name, "assert_ints_same_as_other_ranks", replacements.agreed, compared) for name in names),
        ("deepspeed.runtime.engine", "compare_tensors_in_structures", lambda mine, other: True, batch),
        (engine, "_send_tensor_meta", send, told),
        (engine, "_recv_tensor_meta", receive, told),
    ]


def of_many() -> list[tuple]:
    zero, often = "deepspeed.runtime.zero", "ZeRO-3 does it for every rank, whenever it gathers or scatters"
    return [
        around(f"{zero}.stage3", "reduce_scatter_coalesced", many.scattering, often),
        around(f"{zero}.partition_parameters.AllGatherCoalescedHandle", "wait", many.gathering, often),
        around("torch.Tensor", "narrow", many.narrowing, often),
    ]


def of_gpu(pose: Pose) -> list[tuple]:
    """What makes the posing device one; `gpu` has the answers."""
    from deepspeed.accelerator import get_accelerator
    from torch._subclasses.fake_tensor import FakeTensor

    data = property(replacements.plain_data.__get__, replacements.set_data)
    answers = gpu.answers(pose.memory or gpu.MEMORY) | of_streams()
    posing = type("Posing", (type(get_accelerator()),), answers)
    ledger, asked = "helpers.tools.measure.ledger.Ledger", "what torch's allocator is asked for is noted"
    types = [torch.Tensor, torch.nn.Parameter, FakeTensor]
    accelerator = "deepspeed.accelerator.real_accelerator.ds_accelerator"
    streams = "ZeRO tells torch's allocator which stream uses a tensor"
    foreach = "Adam takes all tensors of a GPU at once where they are of a type that it knows"
    return [
        (accelerator, "__class__", posing, "DeepSpeed asks its accelerator what a GPU would answer"),
        ("torch.Tensor", "data", data, "ZeRO puts a parameter's data on another device"),
        ("torch.Tensor", "record_stream", lambda self, stream: requests.recorder.use(self, stream), streams),
        around(ledger, "_register_storage", requests.hearing_births, asked),
        around(ledger, "_close", requests.hearing_deaths, asked),
        around(ledger, "mark", requests.hearing_marks, asked),
        around(ledger, "_settle", requests.hearing_waits, asked),
        around(
            "torch.nn.functional", "scaled_dot_product_attention", gpu.attention, "a GPU has other kernels"
        ),
        around(
            "torch.optim.optimizer", "_foreach_supported_types", lambda known: [*known, FakeTensor], foreach
        ),
        ("torch.utils._foreach_utils", "_foreach_supported_types", types, foreach),
    ]


def of_streams() -> dict[str, object]:
    """{name: method} of the accelerator: what it says of streams and of its allocator."""
    recorder = requests.recorder
    return {
        "current_stream": lambda self, index=None: recorder.stream,
        "default_stream": lambda self, index=None: recorder.default,
        "stream": lambda self, stream: recorder.working_on(stream),
        "synchronize": lambda self, index=None: recorder.wait(),
        "empty_cache": lambda self: recorder.empty_cache(),
        "Stream": property(lambda self: requests.Stream),
    }


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


def variables(pose: Pose) -> dict[str, str]:
    """What `deepspeed` and `torchrun` would have set for this rank; on the CPU all ranks share a host, as
    `launch` starts them."""
    on_host = gpu.GPUS if pose.device == "cuda" else pose.ranks
    local, here = pose.rank % on_host, min(pose.ranks, on_host)
    numbers = {"RANK": pose.rank, "WORLD_SIZE": pose.ranks, "LOCAL_RANK": local}
    numbers |= {"LOCAL_WORLD_SIZE": here, "LOCAL_SIZE": here}
    return {name: str(value) for name, value in numbers.items()}


def put_on(pose: Pose) -> None:
    """Become the rank of a pose, in a process of its own."""
    os.environ.update(variables(pose))
    # DeepSpeed looks whether memory is aligned
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
    if pose.device == "cuda":
        add_device()
    for patch in patches(pose):
        patch.apply()
