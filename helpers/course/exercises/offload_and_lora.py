"""Answers of lesson 12: adapters, a linear function of a frozen weight, Adam whose states live in files."""

import tempfile
from pathlib import Path

import numpy
import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions import offload_and_lora as solutions
from helpers.course.exercises.trials import build, formula, randn_of_rank
from helpers.tools.measure.ledger import Ledger


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


COPY, ZERO = "copy.deepcopy(self.frozen)", "torch.nn.init.zeros_(self.up.weight)"
LoRA = build(solutions.LoRA_solution, _lora, mistakes={
    ("self.frozen, ", "self.base, ", "self.frozen(x", "self.base(x", COPY, "copy.deepcopy(self.base)"):
        "keep the layer itself as `self.frozen`: later cells look for it by that name",
    ("frozen.requires_grad_(False)", "frozen"):
        "the frozen layer's own parameters still get gradients: `requires_grad_(False)`",
    ("alpha / rank", "1.0"): "the adapter is not scaled: multiply it by alpha / rank",
    ("alpha / rank", "alpha"): "the adapter is multiplied by alpha: divide by the rank too",
    ("alpha / rank", "rank / alpha"): "the scale is alpha / rank, not rank / alpha",
    (ZERO, "pass"): "before training the adapter must add nothing: start one of its matrices, `up`, at zero",
    (ZERO, f"{ZERO}, torch.nn.init.zeros_(self.down.weight)"): "both matrices are zero: each one's "
        "gradient is a product with the other, so neither would ever change",
    (ZERO, f"{ZERO}, torch.nn.init.ones_(self.down.weight)"):
        "all channels of the adapter start alike, so they stay alike: leave `down` at random numbers",
    ("self.frozen(x_bsh) + ", ""): "the frozen layer's output is missing: the adapter's is added to it",
    ("self.frozen(x_bsh)", "self.frozen(x_bsh).detach()"):
        "the layers before need a gradient, and part of it comes through the frozen layer: do not cut it off",
    ("self.frozen(x_bsh) + self.scale * self.up(self.down(x_bsh))", "nn.functional.linear(x_bsh, "
        "self.frozen.weight + self.scale * self.up.weight @ self.down.weight, self.frozen.bias)"):
        "the sum of W and the product is a matrix of W's size, which every pass keeps: send the rows through "
        "`down`, then `up`",
    ("+= self.scale * ", "+= "): "the merged weights lack the scale",
    ("return layer", "layer.bias = None\n        return layer"):
        "the merged layer has lost the frozen layer's bias",
    (COPY, "self.frozen"):
        "merging has changed the frozen layer itself, which now counts the adapter twice: change a copy",
    ("return layer", "layer.bias = self.frozen.bias\n        return layer"):
        "the merged layer shares its bias with the frozen one, so that a change of one changes both",
}, praise="it starts as the frozen layer, trains only thin matrices, and is free once merged")  # fmt: skip


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


FrozenLinear = build(solutions.FrozenLinear_solution, _frozen_linear, mistakes={
    ("backward(weight)", "backward(weight, x_bsh)", "(weight,) =", "weight, _ ="):
        "the input is kept: only the gradient of the weight would need it, and a frozen weight has none",
    ("backward(weight)", "backward(weight.clone())"):
        "a copy of the weight is kept: save the weight itself, which is there anyway",
    ("linear(x_bsh, weight, bias)", "linear(x_bsh, weight)"): "the bias is missing",
    ("gradient @ weight, None", "None, None"):
        "the input has no gradient: it must flow on to the layers before, even through frozen weights",
}, praise="the gradient flows on through the weight alone, so the input need not be kept")  # fmt: skip


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


MAPPED = 'numpy.memmap(path, "float32", "w+", shape=(parameter.numel(),)) for path in paths'
ZERO_FILE = "for path in paths if path.write_bytes(bytes(4 * parameter.numel()))"
VIEWS, MEAN = "(torch.from_numpy(file) for file in files)", "mean.lerp_(gradient"
SHRINK = "mul_(1 - 0.01 * self.lr)."
ROOT, LAST = "(square / (1 - 0.999**self.steps)).sqrt_()", " / (1 - 0.9**self.steps)"
AdamInFiles = build(solutions.AdamInFiles_solution, _in_files, mistakes={
    (ROOT, "square.sqrt()", LAST, ""): "the running means start near zero: divide them by 1 - beta ** steps",
    (MEAN, f"master.copy_(parameter.flatten())\n            {MEAN}"): "steps are added to the bf16 "
        "parameters, where each is too small to change them: add them to fp32 master weights",
    (MEAN, f"mean, square = torch.zeros_like(mean), torch.zeros_like(square)\n            {MEAN}"):
        "the running means start anew in every step",
    (MAPPED, f"torch.zeros(parameter.numel()) {ZERO_FILE}", ".numpy()", "", VIEWS, "files"):
        "the files are there, but the states are kept in memory as well",
    ("parameter, files))", "parameter, [torch.from_numpy(file) for file in files]))", VIEWS, "files"):
        "the states are in files, but tensors on them stay between steps, and the ledger counts those as "
        "memory: keep the arrays, and make tensors of them in `step`",
    (MAPPED, f'numpy.zeros(parameter.numel(), "float32") {ZERO_FILE}'):
        "the files stay as they were made: the states are arrays in memory",
    (SHRINK, ""): "the weights do not shrink: subtract lr times 0.01 w as well",
    (SHRINK, "", "grad.float().flatten(), None", "grad.float().flatten() + 0.01 * master, None"):
        "AdamW takes 0.01 w from the weights, it does not add it to the gradient",
    ("square_(), 0.001", "square_(), 0.01", "0.999**", "0.99**"): "the square's factors are 0.999 and 0.001",
    ("gradient, 0.1", "gradient, 0.001", "_(), 0.001", "_(), 0.1", LAST, LAST.replace("9", "999"), ROOT,
        ROOT.replace("999", "9")):
        "the two means have changed places: 0.9 is for the gradient, 0.999 for its square",
    ("gradient, parameter.grad =", "gradient =", "flatten(), None", "flatten()"):
        "the gradients are still there: set `.grad` to None when a parameter is done",
    ("= lr, 0, []", "= 1e-3, 0, []"): "the learning rate is an argument: use `lr`",
    (".add_(1e-8)", ""): "a gradient that was always zero gives 0 / 0: add 1e-8 to the root",
    (".sqrt_().add_(1e-8)", ".add_(1e-8).sqrt_()"): "1e-8 is added to the root, not under it",
}, praise="memory holds only the parameters; the operating system reads the states when a step "
    "needs them")  # fmt: skip


adapter_parameters = formula(solutions.adapter_parameters_solution, [(4096, 256, 8), (64, 192, 4)], mistakes={
    ("(inputs + outputs)", "inputs"):
        "that is one of the two matrices; the other one leads from `rank` channels to the outputs",
    ("(inputs + outputs)", "outputs"):
        "that is one of the two matrices; the other one leads from the inputs to `rank` channels",
    ("rank * (inputs + outputs)", "inputs * outputs"): "that is the matrix that LoRA leaves frozen",
    ("inputs + outputs", "inputs * outputs"):
        "the two matrices stand one after the other: they are not multiplied for every pair",
}, praise="an adapter grows with the width, the frozen matrix with its square")  # fmt: skip


offloaded_bytes = formula(solutions.offloaded_bytes_solution, [(5_619_712, 2), (6_243_584_000, 8)], mistakes={
    (" / ranks", ""): "ZeRO shards them first: a rank offloads its own part",
    ("12 *", "8 *"): "that is Adam's part; the fp32 master weights go with it",
    ("12 *", "16 *"): "the bf16 parameters and gradients of the model stay on the device",
    ("12 *", "2 *"):
        "that is the share of gradients; master weights and Adam take 12 bytes per trained parameter",
}, praise="you can offload only what you train, and with frozen weights that is next to nothing")  # fmt: skip


longest_sequence = formula(solutions.longest_sequence_solution, [
    (24e9, 12.5e9, 5.8e6), (80e9, 14e9, 1.1e6),
], mistakes={
    ("(memory - fixed)", "memory"): "what does not depend on the sequence is there too: take it off first",
    ("memory - fixed", "memory + fixed"): "the fixed part takes room away",
}, praise="the length grows with the memory left over, so halve the bytes per token before "
    "you buy memory")  # fmt: skip
