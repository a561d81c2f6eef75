"""What rehearsals replace in torch and DeepSpeed: each attribute must be there, and one that is not names
itself."""

import inspect
from pkgutil import resolve_name

import pytest
import torch
from helpers import rehearse
from helpers.tools.rehearsal import many, patches
from helpers.tools.rehearsal.patches import Patch, Pose

ALL = {
    (patch.owner, patch.name): patch
    for device in ("cpu", "cuda")
    for patch in patches.patches(Pose(rank=0, ranks=2, device=device, memory=None, mail="nowhere"))
}


@pytest.mark.parametrize(
    "owner, name",
    [place for place in ALL if not place[1].startswith("__")],
    ids=lambda value: value.rpartition(".")[2],
)
def test_there_is_still(owner, name):
    assert hasattr(resolve_name(owner), name), f"{owner} has no {name} any more: {ALL[owner, name].need}"


def test_an_attribute_that_has_gone_names_itself():
    with pytest.raises(
        AttributeError, match="torch.nn has no Modules any more, which rehearsals replace: for a test"
    ):
        Patch("torch.nn", "Modules", None, "for a test").apply()


USED = [  # by what stands in the place of something, and not replaced: where it is, its name
    ("torch.utils.backend_registration", "_setup_privateuseone_for_python_backend"),
    ("torch._C", "_swap_tensor_impl"),
    ("torch._C", "_DisableTorchDispatch"),
    ("torch._subclasses.fake_tensor", "in_kernel_invocation_manager"),
    ("torch._subclasses.fake_tensor", "no_dispatch"),
    ("torch._subclasses.fake_tensor.FakeTensor", "_normalize_fake_device"),
    ("torch._subclasses.fake_tensor.FakeTensorMode", "avoid_device_init"),
    ("torch._subclasses.fake_tensor.FakeTensorMode", "_should_skip_dynamo"),
    ("torch._subclasses.fake_tensor.FakeTensorConverter", "invalidate_constant_aliases"),
    ("torch._subclasses.fake_tensor.FakeTensorConverter", "from_real_tensor"),
    ("torch.testing._internal.distributed.fake_pg", "FakeStore"),
    ("torch.Tensor", "_make_subclass"),
    ("deepspeed.runtime.zero.utils", "assert_lst_len_same_as_other_ranks"),
    ("deepspeed.runtime.zero.utils", "get_lst_from_rank0"),
    ("deepspeed.runtime.comm.coalesced_collectives", "_torch_reduce_scatter_fn"),
    ("deepspeed.runtime.pipe.engine", "TENSOR_META_SIZE"),
    ("deepspeed.runtime.pipe.engine.PipelineEngine", "_allocate_or_extend_buffers"),
    ("deepspeed.runtime.pipe.p2p", "recv"),
]


@pytest.mark.parametrize("owner, name", USED, ids=lambda value: value.rpartition(".")[2])
def test_a_replacement_still_finds(owner, name):
    assert hasattr(resolve_name(owner), name), f"{owner} has no {name} any more"


# where it is, the words that must stand there, or the patch beside it would do something else than what it
# replaces
IN_SOURCES = [
    (
        "deepspeed.runtime.zero.utils",
        "rank0_ints = get_lst_from_rank0(ints)",
    ),
    ("deepspeed.runtime.zero.partition_parameters", f"def {many.GATHERING}("),
    ("deepspeed.runtime.engine", "compare_tensors_in_structures(args, _src_args[0])"),
    (
        "deepspeed.runtime.pipe.engine.PipelineEngine._recv_tensor_meta",
        "torch.empty(TENSOR_META_SIZE, dtype=torch.int32, device=self.device)",
    ),
    ("transformers.utils.import_utils", 'getattr(torch, "_subclasses").FakeTensor'),
]


@pytest.mark.parametrize("name, words", IN_SOURCES)
def test_its_text_still_says(name, words):
    assert words in inspect.getsource(resolve_name(name)), f"{name} says {words!r} no more"


def composed(operations):
    """Operations that torch puts together from others where a device has no kernel for them, and which a
    posing GPU must have whole."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {
        name
        for name in operations
        if all(has(f"aten::{name}", key) for key in ("CompositeImplicitAutograd", "CPU", "Meta"))
    }


def test_every_operation_is_whole_that_a_gpu_has_whole():
    names = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }
    assert composed(names) == set(patches.WHOLE_ON_A_GPU)


def backward_of_silu():
    from helpers.tools.measure.ledger import Ledger

    with Ledger("gpu") as ledger:
        x = torch.ones(1000, device="gpu", requires_grad=True)
        torch.nn.functional.silu(x).backward(torch.ones(1000, device="gpu"))
        return [storage.bytes for storage in ledger.storages]


@pytest.mark.ranks
def test_the_backward_pass_of_silu_makes_one_tensor():
    assert rehearse(backward_of_silu, 1, device="cuda") == [4000] * 4, (
        "x, its SiLU, and the gradients of both"
    )


def nothing():
    return True


def state():
    from deepspeed.accelerator import get_accelerator

    return {place: id(getattr(resolve_name(place[0]), place[1], None)) for place in ALL} | {
        "device": get_accelerator().device_name(),
        "types": len(resolve_name("torch.optim.optimizer")._foreach_supported_types),
    }


@pytest.mark.ranks
def test_a_rehearsal_leaves_the_kernel_as_it_was():
    before = state()
    assert rehearse(nothing, 2, device="cuda") is True
    assert state() == before
