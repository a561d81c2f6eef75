"""Answers of lesson 11: adapters, a linear function of a frozen weight, and Adam whose states live in
files."""

import copy
import tempfile
from pathlib import Path

import numpy
import torch
from torch import nn
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess

__all__ = [
    "AdamInFiles",
    "FrozenLinear",
    "LoRA",
    "adapter_parameters",
    "guess",
    "longest_sequence",
    "offloaded_bytes",
]


def _shape(seed):
    """(inputs, outputs, rank, alpha) of a layer to adapt, all different."""
    return 5 + seed % 3, 9 + seed % 2, 2, 6 + 2 * (seed % 3)


def _adapted(function, seed):
    """A layer, the rows it reads on this rank, and its adapter with numbers of the trial's own in it."""
    import deepspeed.comm as comm

    inputs, outputs, rank, alpha = _shape(seed)
    frozen = nn.Linear(inputs, outputs)
    rows = torch.randn(4, inputs, generator=torch.Generator().manual_seed(1000 * seed + comm.get_rank()))
    with torch.no_grad():
        before = frozen(rows)
    return frozen, before, rows, function(frozen, rank, alpha)


def _kept_like(weight, layer, rows):
    """How many tensors of a weight's size, other than the weight, a forward pass keeps for the backward
    pass."""
    kept = []

    def keep(tensor):
        kept.append(
            tensor.numel() == weight.numel()
            and tensor.untyped_storage().data_ptr() != weight.untyped_storage().data_ptr()
        )
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(rows.clone().requires_grad_())
    return sum(kept)


def _fill(layer, seed):
    """Numbers of the trial's own in both matrices of an adapter."""
    for one in (layer.down, layer.up):
        with torch.no_grad():
            one.weight.copy_(torch.randn(one.weight.shape, generator=torch.Generator().manual_seed(seed)))


def _without_bias(function, seed, rows):
    """Outputs of an adapter of a layer that has no bias, and of the merged layer."""
    _, outputs, rank, alpha = _shape(seed)
    frozen = nn.Linear(rows.shape[1], outputs, bias=False)
    with torch.no_grad():
        frozen.weight.copy_(
            torch.randn(frozen.weight.shape, generator=torch.Generator().manual_seed(seed + 1))
        )
    layer = function(frozen, rank, alpha)
    _fill(layer, seed)
    return torch.stack([layer(rows), layer.merged()(rows)])


def _lora(function, seed):
    frozen, before, rows, layer = _adapted(function, seed)
    weight = frozen.weight.detach().clone()
    after = layer(rows)
    after.square().sum().backward()
    found = {
        "`frozen` is the layer that was given": getattr(layer, "frozen", None) is frozen,
        "the first output": after,
        "the first output is the frozen layer's": bool(torch.allclose(after, before, atol=1e-6)),
        "numbers with a gradient": sum(
            parameter.numel() for parameter in layer.parameters() if parameter.requires_grad
        ),
        "the first step changes the adapter": any(
            one.weight.grad is not None and bool(one.weight.grad.any()) for one in (layer.down, layer.up)
        ),
    }
    layer.zero_grad()
    _fill(layer, seed)
    found["tensors of the weight's size that are kept for the backward pass"] = _kept_like(
        frozen.weight, layer, rows
    )
    after = layer(rows)
    after.square().mean().backward()
    found |= {
        "the output": after,
        "the gradient of down": layer.down.weight.grad.clone(),
        "the gradient of up": layer.up.weight.grad.clone(),
    }
    merged = layer.merged()
    found["merged is a plain linear layer"] = type(merged) is nn.Linear
    found["the output of the merged layer"] = merged(rows)
    found["the frozen weights after merging"] = frozen.weight.detach()
    found["the frozen weights stay as they were"] = bool(torch.equal(frozen.weight, weight))
    return found | {"the outputs beside a layer without bias": _without_bias(function, seed, rows)}


def _adapter(
    freeze=True, scale="alpha / rank", start="up", adds=True, merge="right", thin=True, called="frozen"
):
    """An adapter that makes the mistake that is named; without one it is right."""

    class LoRA(nn.Module):
        def __init__(self, frozen, rank, alpha):
            super().__init__()
            setattr(self, called, frozen.requires_grad_(not freeze))
            self.scale = {
                "alpha / rank": alpha / rank,
                "none": 1.0,
                "alpha": alpha,
                "rank / alpha": rank / alpha,
            }[scale]
            self.down = nn.Linear(frozen.in_features, rank, bias=False)
            self.up = nn.Linear(rank, frozen.out_features, bias=False)
            for name, layer in (("down", self.down), ("up", self.up)):
                if name in start:
                    nn.init.zeros_(layer.weight)

        def forward(self, x):
            if not thin:
                return nn.functional.linear(
                    x, self.frozen.weight + self.scale * self.up.weight @ self.down.weight, self.frozen.bias
                )
            beside = self.scale * self.up(self.down(x))
            return getattr(self, called)(x) + beside if adds else beside

        def merged(self):
            frozen = getattr(self, called)
            layer = frozen if merge == "in place" else copy.deepcopy(frozen)
            if merge == "without bias":
                layer.bias = None
            layer.weight.data += (
                (1.0 if merge == "without scale" else self.scale)
                * self.up.weight.data
                @ self.down.weight.data
            )
            return layer

    return LoRA


LoRA = Build(
    "LoRA",
    _lora,
    mistakes={
        "keep the layer itself as `self.frozen`: later cells look for it by that name": _adapter(
            called="base"
        ),
        "the frozen layer's own parameters still get gradients: `requires_grad_(False)`": _adapter(
            freeze=False
        ),
        "the adapter is not scaled: multiply it by alpha / rank": _adapter(scale="none"),
        "the adapter is multiplied by alpha: divide by the rank too": _adapter(scale="alpha"),
        "the scale is alpha / rank, not rank / alpha": _adapter(scale="rank / alpha"),
        "before training the adapter must add nothing: start one of its matrices, `up`, at zero": _adapter(
            start=""
        ),
        "both matrices are zero: each one's gradient is a product with the other, so neither "
        "would ever change": _adapter(start="down, up"),
        "the frozen layer's output is missing: the adapter's is added to it": _adapter(adds=False),
        "the sum of W and the product is a matrix of W's size, which every pass keeps: send the "
        "rows through `down`, then `up`": _adapter(thin=False),
        "the merged weights lack the scale": _adapter(merge="without scale"),
        "the merged layer has lost the frozen layer's bias": _adapter(merge="without bias"),
        "merging has changed the frozen layer itself, which now counts the "
        "adapter twice: change a copy": _adapter(merge="in place"),
    },
    praise="it starts as the frozen layer, only thin matrices are trained, and in the end they cost nothing",
)


def _frozen_linear(function, seed):
    """Output and input's gradient of a linear function with a frozen weight, and what it keeps between the
    passes."""
    import deepspeed.comm as comm
    from helpers.tools.measure.ledger import Ledger

    inputs, outputs, *_ = _shape(seed)
    random = torch.Generator().manual_seed(1000 * seed + comm.get_rank())
    weight, bias, rows, gradient = (
        torch.randn(shape, generator=random)
        for shape in ((outputs, inputs), (outputs,), (2, 3, inputs), (2, 3, outputs))
    )
    rows.requires_grad_()
    with Ledger("cpu") as ledger:
        before = ledger.snapshot("before").total
        after = function.apply(rows.clone(), weight, bias)
        kept = ledger.snapshot("after").total - before - 4 * after.numel()
    after.backward(gradient)
    found = {
        "the output": after,
        "bytes kept for the backward pass besides the weight": kept,
        "the gradient of the input": rows.grad,
    }
    return found | {"the output without a bias": function.apply(rows, weight, None)}


def _linear(keeps="weight", adds=True, flows=True):
    """A linear function that makes the mistake that is named; without one it is right."""

    class FrozenLinear(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight, bias):
            kept = {"weight": (weight,), "weight and input": (weight, x), "a copy": (weight.clone(),)}
            context.save_for_backward(*kept[keeps])
            return nn.functional.linear(x, weight, bias if adds else None)

        @staticmethod
        def backward(context, gradient):
            return gradient @ context.saved_tensors[0] if flows else None, None, None

    return FrozenLinear


FrozenLinear = Build(
    "FrozenLinear",
    _frozen_linear,
    mistakes={
        "the input is kept: only the gradient of the weight would need it, "
        "and a frozen weight has none": _linear(keeps="weight and input"),
        "a copy of the weight is kept: save the weight itself, which is there anyway": _linear(
            keeps="a copy"
        ),
        "the bias is missing": _linear(adds=False),
        "the input has no gradient: it must flow on to the layers before, whoever is frozen": _linear(
            flows=False
        ),
    },
    praise="the gradient flows on through the weight alone, so that the input can go",
)

STEPS, RATE = 200, 1e-3


def _contents(folder):
    """{path: bytes} of all files."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def _nearest(contents, values):
    """What lies nearest to some values among the equally long fp32 vectors of files, whatever the files are
    called."""
    size = 4 * len(values)
    parts = [
        content[at : at + size]
        for content in contents
        if len(content) % size == 0
        for at in range(0, len(content), size)
    ]
    vectors = [torch.from_numpy(numpy.frombuffer(part, "float32").copy()) for part in parts]
    return min(
        vectors,
        key=lambda vector: float((vector - values).abs().nan_to_num(1e30).sum()),
        default=torch.zeros(0),
    )


def _give_gradients(parameters, random):
    for parameter in parameters:
        scale = 10 ** (2 * torch.rand(1, generator=random) - 1)  # of both signs, now large, now small
        parameter.grad = (scale * torch.randn(parameter.shape, generator=random)).bfloat16()


def _in_files(function, seed):
    """Small steps of bf16 parameters: each alone is lost in bf16, so that only master weights in fp32 move at
    all."""
    import deepspeed.comm as comm
    from helpers.tools.measure.ledger import Ledger

    random = torch.Generator().manual_seed(1000 * seed + comm.get_rank())
    parameters = [
        nn.Parameter(1 + torch.rand(shape, generator=random).bfloat16()) for shape in ((3, 5), (7,))
    ]
    elements, found = sum(parameter.numel() for parameter in parameters), {}
    with tempfile.TemporaryDirectory() as folder:
        with Ledger(
            "cpu"
        ) as ledger:  # of the first step alone: whoever keeps states in memory does so from there on
            adam = function(parameters, Path(folder), RATE)
            _give_gradients(parameters, random)
            before = _contents(folder)
            adam.step()
            changed = [content for path, content in _contents(folder).items() if content != before[path]]
            found["a step changes 12 bytes per parameter in the files"] = (
                sum(map(len, changed)) >= 12 * elements
            )
            found["gradients are gone after a step"] = all(parameter.grad is None for parameter in parameters)
            found["no tensors of states between steps"] = (
                ledger.snapshot("between steps").total <= 3 * elements
            )
        for _ in range(STEPS - 1):
            _give_gradients(parameters, random)
            adam.step()
        contents = _contents(folder).values()
        for index, parameter in enumerate(parameters):
            master = _nearest(contents, parameter.detach().float().flatten())
            found[f"master weights {index} in the files after {STEPS} steps"] = master
            found[f"parameter {index} is its master weights, rounded"] = bool(
                torch.equal(parameter.detach().flatten(), master.bfloat16())
            )
    return found


def _adam(
    corrects=True,
    master=True,
    keeps="in files",
    remembers=True,
    forgets=True,
    decay="weights",
    betas=(0.9, 0.999),
):
    """An Adam that makes the mistake that is named; without one it is right."""

    class AdamInFiles:
        def __init__(self, parameters, folder, lr):
            self.lr, self.steps, self.of = lr, 0, []
            for index, parameter in enumerate(parameters):
                states = []
                for name in ("master", "mean", "square"):
                    count = parameter.numel()
                    if keeps in ("in files", "tensors on files"):
                        states.append(
                            numpy.memmap(folder / f"{name}-{index}", "float32", "w+", shape=(count,))
                        )
                    else:
                        (folder / f"{name}-{index}").write_bytes(bytes(4 * count))
                        states.append(
                            torch.zeros(count) if keeps == "in memory" else numpy.zeros(count, "float32")
                        )
                states[0][:] = (
                    parameter.detach().flatten().float()
                    if keeps == "in memory"
                    else parameter.detach().flatten().float().numpy()
                )
                if keeps == "tensors on files":
                    states = [torch.from_numpy(state) for state in states]
                self.of.append((parameter, states))

        @torch.no_grad()
        def step(self):
            self.steps += 1
            for parameter, states in self.of:
                weights, mean, square = (
                    torch.from_numpy(one) if isinstance(one, numpy.ndarray) else one for one in states
                )
                gradient = parameter.grad.flatten().float()
                if not remembers:
                    mean, square = torch.zeros_like(mean), torch.zeros_like(square)
                if not master:
                    weights.copy_(parameter.flatten())
                if decay == "gradient":
                    gradient = gradient + 0.01 * weights
                mean.lerp_(gradient, 1 - betas[0])
                square.lerp_(gradient**2, 1 - betas[1])
                first, second = (
                    (1 - betas[0] ** self.steps, 1 - betas[1] ** self.steps) if corrects else (1.0, 1.0)
                )
                shrink = 0.01 * weights if decay == "weights" else 0.0
                weights -= self.lr * (shrink + mean / first / ((square / second).sqrt() + 1e-8))
                parameter.copy_(weights.view_as(parameter))
                if forgets:
                    parameter.grad = None

    return AdamInFiles


AdamInFiles = Build(
    "AdamInFiles",
    _in_files,
    mistakes={
        "the running means start near zero: divide them by 1 - beta ** steps": _adam(corrects=False),
        "steps are added to the bf16 parameters, where each is too small to change them: add "
        "them to fp32 master weights": _adam(master=False),
        "the running means start anew in every step": _adam(remembers=False),
        "the files are there, but the states are kept in memory as well": _adam(keeps="in memory"),
        "the states are in files, but tensors on them stay between steps, and whoever counts "
        "tensors, as the ledger does, counts those as memory: "
        "keep the arrays, and make tensors of them in `step`": _adam(keeps="tensors on files"),
        "the files stay as they were made: the states are arrays in memory": _adam(keeps="in arrays"),
        "the weights do not shrink: subtract lr times 0.01 w as well": _adam(decay="none"),
        "AdamW takes 0.01 w from the weights, it does not add it to the gradient": _adam(decay="gradient"),
        "the square's factors are 0.999 and 0.001": _adam(betas=(0.9, 0.99)),
        "the two means have changed places: 0.9 is for the gradient, 0.999 for its square": _adam(
            betas=(0.999, 0.9)
        ),
        "the gradients are still there: set `.grad` to None when a parameter is done": _adam(forgets=False),
    },
    praise="memory holds the parameters alone, and the operating system brings the "
    "states when they are needed",
)

adapter_parameters = Exercise(
    reference=lambda inputs, outputs, rank: rank * (inputs + outputs),
    cases=({"inputs": 4096, "outputs": 256, "rank": 8}, {"inputs": 64, "outputs": 192, "rank": 4}),
    mistakes={
        "that is one of the two matrices; the other one leads from "
        "`rank` channels to the outputs": lambda inputs, outputs, rank: rank * inputs,
        "that is one of the two matrices; the other one leads from the "
        "inputs to `rank` channels": lambda inputs, outputs, rank: rank * outputs,
        "that is the matrix that LoRA leaves frozen": lambda inputs, outputs, rank: inputs * outputs,
        "the two matrices stand one after the other: they are not "
        "multiplied for every pair": lambda inputs, outputs, rank: rank * inputs * outputs,
    },
    praise="linear in the width where the frozen matrix is quadratic",
)

offloaded_bytes = Exercise(
    reference=lambda trained, ranks: 12 * trained / ranks,
    cases=({"trained": 5_619_712, "ranks": 2}, {"trained": 6_243_584_000, "ranks": 8}),
    mistakes={
        "ZeRO shards them first: a rank offloads its own part": lambda trained, ranks: 12 * trained,
        "that is Adam's part; the fp32 master weights go with it": lambda trained, ranks: 8 * trained / ranks,
        "the bf16 parameters and gradients of the model stay on the device": lambda trained, ranks: (
            16 * trained / ranks
        ),
        "that is the share of gradients; master weights and Adam take 12 "
        "bytes per trained parameter": lambda trained, ranks: 2 * trained / ranks,
    },
    praise="what can be offloaded is what is trained: with frozen weights next to nothing",
)

longest_sequence = Exercise(
    reference=lambda memory, fixed, per_token: (memory - fixed) / per_token,
    cases=(
        {"memory": 24e9, "fixed": 12.5e9, "per_token": 5.8e6},
        {"memory": 80e9, "fixed": 14e9, "per_token": 1.1e6},
    ),
    mistakes={
        "what does not depend on the sequence is "
        "there too: take it off first": lambda memory, fixed, per_token: memory / per_token,
        "the fixed part takes room away": lambda memory, fixed, per_token: (memory + fixed) / per_token,
    },
    praise="linear in what is left over, so halve the bytes of a token before you buy memory",
)
