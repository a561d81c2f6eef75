"""Answers of lesson 12: adapters, a linear function of a frozen weight, Adam whose states live in files."""

import tempfile
from pathlib import Path

import numpy
import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import randn_of_rank
from helpers.tools.measure.ledger import Ledger

stubs = Stubs("offload_and_lora")


def _shape(seed):
    """(inputs, outputs, rank, alpha) of a layer to adapt, all different."""
    return 5 + seed % 3, 9 + seed % 2, 2, 6 + 2 * (seed % 3)


def _kept_like(weight, layer, rows):
    """How many other tensors of a weight's size a forward pass keeps for the backward pass."""
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(rows.clone().requires_grad_())
    alike = [tensor.untyped_storage().data_ptr() for tensor in kept if tensor.numel() == weight.numel()]
    return len(alike) - alike.count(weight.untyped_storage().data_ptr())


@torch.no_grad()
def _fill(layer, seed):
    """Numbers of the trial's own in both matrices of an adapter."""
    for matrix in (layer.down.weight, layer.up.weight):
        matrix.copy_(torch.randn(matrix.shape, generator=torch.Generator().manual_seed(seed)))


def _lora(function, seed):
    inputs, outputs, rank, alpha = _shape(seed)
    frozen, bare = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)
    rows = randn_of_rank(seed, 4, inputs).requires_grad_()
    before = frozen(rows.detach())
    layer = function(frozen, rank, alpha)
    after = layer(rows)
    after.square().sum().backward()
    matrices = (layer.down.weight, layer.up.weight)
    first = [int(torch.linalg.matrix_rank(matrix.grad)) for matrix in matrices if matrix.grad is not None]
    trained = [parameter.numel() for parameter in layer.parameters() if parameter.requires_grad]
    layer.zero_grad()
    rows.grad = None
    _fill(layer, seed)
    kept = _kept_like(frozen.weight, layer, rows.detach())
    later = layer(rows)
    later.square().mean().backward()
    merged, without = layer.merged(), function(bare, rank, alpha)
    _fill(without, seed)
    own, others = ({parameter.data_ptr() for parameter in layer.parameters()} for layer in (frozen, merged))
    return {
        "`frozen` is the layer that was given": getattr(layer, "frozen", None) is frozen,
        "the first output": after,
        "the first output is the frozen layer's": torch.allclose(after, before, atol=1e-6),
        "numbers with a gradient": sum(trained),
        "channels of the adapter that the first step changes in different ways": max(first, default=0),
        "tensors of the weight's size that are kept for the backward pass": kept,
        "the output": later,
        "the gradient of down": layer.down.weight.grad,
        "the gradient of up": layer.up.weight.grad,
        "the gradient of the input": rows.grad,
        "merged is a plain linear layer": type(merged) is nn.Linear,
        "the output of the merged layer": merged(rows),
        "the frozen weights after merging": frozen.weight,
        "tensors that the merged layer shares with the frozen one": len(own & others),
        "the outputs beside a layer without bias": torch.stack([without(rows), without.merged()(rows)]),
    }


LoRA = stubs.build("LoRA", Returning(_lora))


def _frozen_linear(function, seed):
    """A linear function of a frozen weight: output, input's gradient, what is kept in between."""
    inputs, outputs, *_ = _shape(seed)
    weight, bias = randn_of_rank(seed, outputs, inputs), randn_of_rank(seed + 1, outputs)
    rows = randn_of_rank(seed + 2, 2, 3, inputs).requires_grad_()
    with Ledger("cpu") as ledger:
        before = ledger.snapshot("before").total
        after = function.apply(rows.clone(), weight, bias)
        kept = ledger.snapshot("after").total - before - 4 * after.numel()
    after.backward(randn_of_rank(seed + 3, *after.shape))
    return {
        "the output": after,
        "bytes kept for the backward pass besides the weight": kept,
        "the gradient of the input": rows.grad,
        "the output without a bias": function.apply(rows, weight, None),
    }


FrozenLinear = stubs.build("FrozenLinear", Returning(_frozen_linear))


def _contents(folder):
    """{path: bytes} of all files."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def _nearest(contents, values):
    """What lies nearest to some values among all equally long fp32 vectors of files."""
    whole = b"".join(content for content in contents if len(content) % (4 * len(values)) == 0)
    vectors = torch.from_numpy(numpy.frombuffer(whole, "float32").copy()).view(-1, len(values))
    distances = (vectors - values).abs().nan_to_num(1e30).sum(1)
    return vectors[distances.argmin()] if len(vectors) else torch.zeros(0)


def _give_gradients(parameters):
    """Gradients of both signs, now large, now small; one is always zero, and one is Adam's epsilon."""
    for parameter in parameters:
        gradient = 10 ** (2 * torch.rand(1) - 1) * torch.randn(parameter.shape)
        gradient.view(-1)[:2] = torch.tensor([0.0, 1e-8])
        parameter.grad = gradient.bfloat16()


def _in_files(function, seed):
    """Small steps of bf16 parameters: each alone is lost in bf16, and moves master weights in fp32 only."""
    torch.manual_seed(1000 * (seed % 10**6) + dist.get_rank())
    parameters = [nn.Parameter(1 + torch.rand(shape).bfloat16()) for shape in ((3, 5), (7,))]
    elements, steps, seen = sum(parameter.numel() for parameter in parameters), 200, {}
    with tempfile.TemporaryDirectory() as folder:
        with Ledger("cpu") as ledger:  # during the first step: states kept in memory stay from there on
            adam = function(parameters, Path(folder), 1.2e-3 + 3e-4 * (seed % 3))
            _give_gradients(parameters)
            before = _contents(folder)
            adam.step()
            changed = sum(len(data) for path, data in _contents(folder).items() if data != before[path])
            kept = ledger.snapshot("between steps").total
            seen["a step changes 12 bytes per parameter in the files"] = changed >= 12 * elements
            seen["gradients are gone after a step"] = all(parameter.grad is None for parameter in parameters)
            seen["no tensors of states between steps"] = kept <= 3 * elements
        for _ in range(steps - 1):
            _give_gradients(parameters)
            adam.step()
        for index, parameter in enumerate(parameters):
            values = parameter.detach().flatten()
            master = _nearest(_contents(folder).values(), values.float())
            seen[f"master weights {index} in the files after {steps} steps"] = master
            seen[f"parameter {index} is its master weights, rounded"] = values.equal(master.bfloat16())
    return seen


AdamInFiles = stubs.build("AdamInFiles", Returning(_in_files))


adapter_parameters = stubs.formula("adapter_parameters", [(4096, 256, 8), (64, 192, 4)])


offloaded_bytes = stubs.formula("offloaded_bytes", [(5_619_712, 2), (6_243_584_000, 8)])


longest_sequence = stubs.formula(
    "longest_sequence",
    [
        (24e9, 12.5e9, 5.8e6),
        (80e9, 14e9, 1.1e6),
    ],
)
