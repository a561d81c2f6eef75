"""The private attributes of torch and DeepSpeed that measuring needs: each must be there, and an optimizer
that nobody knows is refused."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from helpers import launch, models
from helpers.tools.launcher import parcel
from helpers.tools.measure import internals, owners, timelines
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.operations import OPERATIONS
from tests.support import configuration


def found(name):
    """The class, function or module of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return getattr(found(module), attribute)


WRAPPED = [
    (name, attribute)
    for name, groups in owners.WRAPPERS.items()
    for attributes in groups.values()
    for attribute in attributes
]


@pytest.mark.parametrize("name, attribute", WRAPPED, ids=lambda value: value.rpartition(".")[2])
def test_the_optimizer_still_has(name, attribute):
    text = "".join(inspect.getsource(base) for base in found(name).__mro__[:-1])
    assert f"self.{attribute}" in text, f"{name} has no {attribute} any more"


INNER = [name for name in owners.WRAPPERS if name not in owners.STATELESS]


@pytest.mark.parametrize("name", INNER)
def test_the_wrapper_keeps_the_inner_optimizer_in_the_same_place(name):
    assert "self.optimizer = " in inspect.getsource(found(name)), f"{name} has no optimizer any more"


@pytest.mark.parametrize("name", [*owners.WITH_STATE, *owners.STATELESS])
def test_the_class_is_still_there(name):
    assert inspect.isclass(found(name))


OTHERS = [  # where it is, the attribute
    ("torch.UntypedStorage", "_cdata"),
    ("torch.UntypedStorage", "resize_"),
    ("torch.distributed.tensor.DTensor", "__tensor_flatten__"),
    ("torch.distributed.ProcessGroup", "unbox"),
    ("torch.distributed.Work", "unbox"),
    ("torch.Tensor", "_indices"),
    ("torch.Tensor", "_values"),
    *[("torch.Tensor", name) for name in internals.NESTED],
    ("torch._C", "_dispatch_keyset_full_after"),
    ("torch.library.Library", "_destroy"),
    ("torch._C", "_accelerator_setAllocatorSettings"),
    ("torch.utils._python_dispatch", "TorchDispatchMode"),
    ("torch.utils._python_dispatch", "_disable_current_modes"),
    ("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"),
    ("torch.utils._pytree", "tree_leaves"),
    ("torch._C", "_current_graph_task_id"),
    ("torch.distributed.distributed_c10d", "_set_pg_timeout"),
    ("torch.distributed.ProcessGroup", "_get_backend"),
    ("torch.distributed.ProcessGroupGloo", "options"),
    ("torch.distributed.ProcessGroupGloo._Options", "_timeout"),
    ("deepspeed.runtime.pipe.engine.PipelineEngine", "_INSTRUCTION_MAP"),
    ("deepspeed.runtime.pipe.schedule", "TrainSchedule"),
    ("deepspeed.runtime.zero.partition_parameters.ZeroParamStatus", "AVAILABLE"),
]


@pytest.mark.parametrize("name, attribute", OTHERS, ids=lambda value: value.rpartition(".")[2])
def test_there_is_still(name, attribute):
    assert hasattr(found(name), attribute), f"{name} has no {attribute} any more"


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch knows no GPUs")
def test_there_is_still_a_way_to_clear_workspaces():
    assert hasattr(torch._C, "_cuda_clearCublasWorkspaces")


@pytest.mark.parametrize("name", internals.MESSAGES)
def test_the_operator_still_takes_its_message_so(name):
    operation, argument = internals.MESSAGES[name]
    arguments = {each.name for each in getattr(torch.ops.c10d, name).default._schema.arguments}
    assert {argument or "tensor", "process_group"} <= arguments
    assert operation in OPERATIONS and operation in timelines.MESSAGES


def test_no_operator_of_a_process_group_is_missing():
    """A new one would send and not be counted."""
    found = {
        schema.name.removeprefix("c10d::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("c10d::") and "ProcessGroup" in str(schema)
    }
    assert found == set(internals.MESSAGES)


def test_a_functional_collective_is_still_waited_for_so():
    namespace, names = internals.WAITS
    assert all(hasattr(getattr(torch.ops, namespace), name) for name in names)


def test_messages_operators_have_no_kernel_of_the_key_that_counting_uses():
    for name in internals.MESSAGES:
        key = torch._C.DispatchKey.BackendSelect.name
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", key)


IN_SOURCES = [  # where it is, the words that must stand there
    *[
        ("deepspeed.runtime.zero.partition_parameters", f"param.{name} = ")
        for name in (*owners.SHARDS, "ds_status", "ds_shape")
    ],
    (
        "deepspeed.comm.torch",
        "deepspeed.ops.__compatible_ops__.get(",
    ),  # which helpers/tools/launcher/rank.py empties
    ("deepspeed.runtime.zero.stage3.IPGBucketZ3", "buffer"),
    ("deepspeed.runtime.zero.stage_1_and_2.IPGBucket", "buffer"),
]


@pytest.mark.parametrize("name, words", IN_SOURCES)
def test_its_text_still_says(name, words):
    assert words in inspect.getsource(found(name)), f"{name} says {words!r} no more"


def test_a_typed_storage_is_still_made_of_one_without_a_type():
    """As ranks get their tensors: `_internal` and `_untyped_storage` are torch's own."""
    storage = torch.UntypedStorage(8)
    assert parcel.typed(storage, torch.float32)._untyped_storage is storage


FOLDER = Path(internals.__file__).parent
TREES = {path.name: ast.parse(path.read_text()) for path in FOLDER.glob("*.py")}


def said(tree):
    """Names with a leading underscore that a module imports, reads or has as a string; Python's own, with
    two, are left out."""
    fields = [
        getattr(node, field, None)
        for node in ast.walk(tree)
        for field in ("id", "attr", "name", "module", "arg", "value")
    ]
    names = {name for value in fields if isinstance(value, str) for name in value.split(".")}
    return {name for name in names if re.fullmatch(r"_[A-Za-z]\w*", name)}


def made(tree):
    """Names that a module defines: functions, classes, variables and attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        ):
            yield node.attr


OWN = {name for tree in TREES.values() for name in made(tree)}


@pytest.mark.parametrize("module", sorted(TREES.keys() - {"internals.py"}))
def test_no_other_module_knows_private_names_of_torch_and_deepspeed(module):
    assert not said(TREES[module]) - OWN, f"what is not the course's own belongs into {internals.__name__}"


@pytest.mark.parametrize(
    "text, name",
    [
        ("from torch.utils._pytree import tree_leaves", "_pytree"),
        ("import torch._C", "_C"),
        ("tensor._local_tensor", "_local_tensor"),
        ('getattr(tensor, "_local_tensor", None)', "_local_tensor"),
        ("engine._INSTRUCTION_MAP = {}", "_INSTRUCTION_MAP"),
        ("TypedStorage(_internal=True)", "_internal"),
    ],
)
def test_a_private_name_is_noticed(text, name):
    assert said(ast.parse(text)) - OWN == {name}


def initialised(stage, keys):
    """The class of the engine's optimizer, and of the one inside."""
    import deepspeed

    model = models.build(models.GPT)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(stage, **keys)
    )
    with Ledger("cpu") as ledger:
        ledger.watch(engine)
    return owners._name(engine.optimizer)


FP32_SUMS = {"extra": {"data_types": {"grad_accum_dtype": "fp32"}}}
USED = [
    (0, {}, "FP16_UnfusedOptimizer"),
    (0, {"bf16": False}, "AdamW"),
    (1, {}, "DeepSpeedZeroOptimizer"),
    (2, FP32_SUMS, "DeepSpeedZeroOptimizer"),
    (1, FP32_SUMS, "BF16_Optimizer"),
    (3, {}, "DeepSpeedZeroOptimizer_Stage3"),
]


@pytest.mark.ranks
@pytest.mark.parametrize("stage, keys, name", USED, ids=[f"{stage}-{name}" for stage, _, name in USED])
def test_a_stage_still_uses_the_class_it_used(stage, keys, name):
    assert launch(initialised, ranks=1, arguments={"stage": stage, "keys": keys}, device="cpu")[0].endswith(
        f".{name}"
    )


class Secretive(torch.optim.Optimizer):
    """Keeps its momentum where nobody looks."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.hidden = [
            torch.zeros_like(parameter) for group in self.param_groups for parameter in group["params"]
        ]


class Wrapper:
    def __init__(self, inner):
        self.optimizer = inner


@pytest.mark.parametrize(
    "make", [Secretive, lambda parameters: Wrapper(torch.optim.AdamW(parameters))], ids=["inner", "wrapper"]
)
def test_an_optimizer_that_nobody_knows_is_refused_by_its_name(make):
    model = torch.nn.Linear(2, 2)
    optimizer = make(model.parameters())
    with (
        Ledger("cpu") as ledger,
        pytest.raises(
            TypeError, match=rf"where {__name__}.{type(optimizer).__name__} keeps its tensors.*ledger.label"
        ),
    ):
        ledger.watch(model, optimizer)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adafactor"])
def test_torchs_own_optimizers_are_known(name):
    model = torch.nn.Linear(20, 20)
    optimizer = getattr(torch.optim, name)(model.parameters())
    with Ledger("cpu") as ledger:
        ledger.watch(model, optimizer)
        model(torch.ones(1, 20)).sum().backward()
        optimizer.step()
        kept = sum(
            tensor.untyped_storage().nbytes()
            for state in optimizer.state.values()
            for tensor in state.values()
            if torch.is_tensor(tensor)
        )
        assert ledger.categories()["optimizer states"] == kept
