"""Answers of lesson 09: ZeRO-3, and the mistakes that people make there."""

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.tools.measure.traffic import Traffic

__all__ = ["guess", "sharded_backward", "stage_3_units", "zero_3_largest_model"]


# --- the backward pass of a sharded layer


class _Sharded:
    """A layer of which each rank keeps a shard, as the lesson makes it: `layer`, `shard`, `ranks`,
    `gather()`, `release()`, `flatten(tensors)`."""

    def __init__(self, layer):
        import deepspeed.comm as comm

        self.layer, self.shapes, self.gathers = (
            layer,
            [parameter.shape for parameter in layer.parameters()],
            0,
        )
        self.ranks = comm.get_world_size()
        self.shard = nn.Parameter(
            self.flatten(layer.parameters()).chunk(self.ranks)[comm.get_rank()].detach().clone()
        )
        self.before = self.shard.detach().clone()
        layer.register_forward_pre_hook(self.refuse_when_released)
        self.release()

    def refuse_when_released(self, *call):
        if self.elements() == 0:
            raise RuntimeError(
                "the layer's parameters are released: call sharded.gather() before you compute the layer"
            )

    def __call__(self, *call):
        raise TypeError(
            "compute sharded.layer(x): sharded(x) would be its whole forward pass, which gathers "
            "and comes back to your function"
        )

    def elements(self):
        return sum(parameter.numel() for parameter in self.layer.parameters())

    def gather(self):
        import deepspeed.comm as comm

        self.gathers += 1
        flat = torch.empty(len(self.shard) * comm.get_world_size())
        comm.all_gather_into_tensor(flat, self.shard.detach())
        pieces = flat[: sum(shape.numel() for shape in self.shapes)].split(
            [shape.numel() for shape in self.shapes]
        )
        for parameter, shape, piece in zip(self.layer.parameters(), self.shapes, pieces):
            parameter.data = piece.view(shape)

    def flatten(self, tensors):
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        return F.pad(flat, (0, -len(flat) % self.ranks))

    def release(self):
        for parameter in self.layer.parameters():
            parameter.data = parameter.data.new_empty(0)


class _Operator(torch.autograd.Function):
    """Forward as the lesson has it; backward by the function that is tried, whose two gradients are noted."""

    @staticmethod
    def forward(context, x, shard, sharded, function, noted):
        context.save_for_backward(x)
        context.sharded, context.function, context.noted = sharded, function, noted
        sharded.gather()
        y = sharded.layer(x)
        sharded.release()
        return y

    @staticmethod
    def backward(context, y_gradient):
        try:
            given = context.function(context.sharded, context.saved_tensors[0], y_gradient)
        except RuntimeError as error:
            _add_words(error)
            raise
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            what = f"{len(given)} values" if isinstance(given, (tuple, list)) else type(given).__name__
            raise TypeError(
                f"sharded_backward must return two gradients, that of x and that of the shard, not {what}"
            )
        x_gradient, shard_gradient = given
        if not isinstance(shard_gradient, torch.Tensor):
            raise TypeError(
                "the second that sharded_backward returns is the gradient of the shard, a "
                f"tensor, not {type(shard_gradient).__name__}"
            )
        if shard_gradient.shape != context.sharded.shard.shape:
            shape, due = tuple(shard_gradient.shape), tuple(context.sharded.shard.shape)
            if shard_gradient.shape == context.saved_tensors[0].shape:
                raise ValueError(
                    f"the second that you return has shape {shape}, that of x; the shard's is "
                    f"{due}: is it the other way round?"
                )
            raise ValueError(
                f"the gradient of the shard has shape {shape}, the shard {due}: the shard was cut "
                "from one flat tensor of all parameters: put all "
                "their gradients into one, by sharded.flatten(...); then reduce-scatter leaves "
                "each rank its own part"
            )
        context.noted.append(
            {"x": x_gradient if x_gradient is None else x_gradient.clone(), "shard": shard_gradient.clone()}
        )
        return x_gradient, shard_gradient, None, None, None


WORDS = {
    "does not require grad": "inside of a backward pass autograd records nothing, unless under "
    "torch.enable_grad(): the "
    "layer, from "
    "x.detach().requires_grad_(), and whatever you compute from y",
    "a second time": "x belongs to the layers before: detach() it, so that this backward pass ends at it",
    "of floating point": "token ids have no gradient: ask x.is_floating_point() first",
    "outputShape[0] * worldSize": "the gradients of all parameters, in one flat tensor, padded to N times "
    "the elements of the shard: "
    "sharded.flatten(...) does it",
    "The size of tensor a (0)": "the gradients need the parameters: release them afterwards",
    "only for scalar outputs": "the layer's backward pass starts from y_gradient: y.backward(y_gradient)",
}


def _add_words(error):
    """Put before what an error says a word on what leads to it."""
    said = str(error)
    word = next((word for part, word in WORDS.items() if part in said), "")
    if word and word not in said:  # a pass that runs into the layers before it comes here twice
        error.args = (f"{word} ({said.splitlines()[0]})",)


def _layers(seed, ranks):
    """A table of 4 rows, whose elements divide by the ranks, then two layers of two matrices each, of which
    the first's do not."""
    random = torch.Generator().manual_seed(seed)
    width = ranks * (2 + seed % 2) + 1
    inside = [width + 1 + int(torch.randint(4, (), generator=random)) for _ in range(2)]
    inside[0] += (
        inside[0] * (2 * width + 1) + width
    ) % ranks == 0  # one row more, and the elements divide no more
    layers = [nn.Embedding(4, width)]
    return layers + [nn.Sequential(nn.Linear(width, one), nn.Tanh(), nn.Linear(one, width)) for one in inside]


def _passed_back(function, seed):
    """Two micro-batches through a table and two layers; the shards' gradients, what is left behind, and what
    was sent."""
    import deepspeed.comm as comm

    rank, ranks, found = comm.get_rank(), comm.get_world_size(), {}
    sharded = [_Sharded(layer) for layer in _layers(seed, ranks)]
    random = torch.Generator().manual_seed(1000 * (seed % 10**6) + rank)
    for micro_batch in (1, 2):
        x, noted, when = torch.randint(4, (3,), generator=random), [], f", micro-batch {micro_batch}"
        for one in sharded:
            x = _Operator.apply(x, one.shard, one, function, noted)
            one.gathers = 0
        with Traffic() as traffic:
            (x * torch.randn(x.shape, generator=random)).sum().backward()
        for index, one in reversed(
            [*enumerate(sharded)]
        ):  # as the passes go, so that what is reported first went wrong first
            name = f", layer {index}{when}"
            found[f"the gradient of x{name}"] = (
                noted[-1 - index]["x"] if index else None
            )  # token ids have none
            found[f"the gradient of the shard{name}"] = noted[-1 - index]["shard"]
            found[f"what autograd has added up in shard.grad{name}"] = one.shard.grad.clone()
            found[f"the shard itself is as before{name}"] = bool((one.shard.detach() == one.before).all())
            found[f"elements that are still gathered{name}"] = one.elements()
            found[f"gradients of whole parameters that are left{name}"] = sum(
                one.grad is not None for one in one.layer.parameters()
            )
            found[f"how often it was gathered{name}"] = one.gathers
        due = sum(2 * 4 * (ranks - 1) * len(one.shard) for one in sharded)
        found[f"the parameters and the gradients are sent once each{when}"] = (
            sum(traffic.ideal.values()) <= due
        )
    return found


def _back(
    gathers=1,
    detaches=True,
    follows=True,
    reduces="scatter",
    divides="once",
    pads="end",
    releases=True,
    clears="dropped",
    adds=False,
    order=1,
    of_x="own",
):
    """A backward pass that makes the mistake that is named; without one it is right."""

    def sharded_backward(sharded, x, y_gradient):
        import deepspeed.comm as comm

        rank, ranks = comm.get_rank(), comm.get_world_size()
        for _ in range(gathers):
            sharded.gather()
        x = (
            x.detach().requires_grad_(x.is_floating_point())
            if detaches or not x.is_floating_point()
            else x.detach()
        )
        with torch.enable_grad():
            y = sharded.layer(x)
        y.backward(y_gradient if follows else torch.ones_like(y_gradient))
        flat = torch.cat(
            [parameter.grad.flatten() for parameter in list(sharded.layer.parameters())[::order]]
        )
        missing = len(sharded.shard) * ranks - len(flat)
        flat = F.pad(flat, (missing, 0) if pads == "start" else (0, missing))
        mine = flat.chunk(ranks)[rank].clone()
        if reduces == "scatter":
            comm.reduce_scatter_tensor(mine, flat)
        elif reduces == "each":
            pieces = []
            for parameter in sharded.layer.parameters():
                padded = F.pad(parameter.grad.flatten(), (0, -parameter.numel() % ranks))
                pieces.append(padded.new_empty(len(padded) // ranks))
                comm.reduce_scatter_tensor(pieces[-1], padded)
            mine = torch.cat(pieces)[: len(mine)]  # where it is longer, its shape is answered
        elif reduces == "all":
            comm.all_reduce(flat)
            mine = flat.chunk(ranks)[rank].clone()
        mine /= {"never": 1, "once": ranks, "twice": ranks**2, "by two": 2}[divides]
        if releases:
            sharded.release()
        for parameter in sharded.layer.parameters():
            if clears == "zeroed":
                parameter.grad.zero_()
            elif clears:
                parameter.grad = None
        if adds:
            sharded.shard.grad = mine.clone() if sharded.shard.grad is None else sharded.shard.grad + mine
        if x.grad is not None and of_x != "own":
            x.grad /= ranks
            if of_x == "averaged":
                comm.all_reduce(x.grad)
        return x.grad, mine

    return sharded_backward


sharded_backward = Build(
    "sharded_backward",
    _passed_back,
    mistakes={
        "that is the sum over the ranks; a mean is divided by their number": _back(divides="never"),
        "that is divided by the number of ranks twice": _back(divides="twice"),
        "divide by the number of ranks, which is not always two": _back(divides="by two"),
        "that is a part of this rank's own gradient: reduce-scatter the gradients of all ranks": _back(
            reduces="nothing"
        ),
        "that is a part of this rank's own gradient: reduce-scatter, then divide": _back(
            reduces="nothing", divides="never"
        ),
        "the shard was cut from one flat tensor of all parameters: put all their gradients into "
        "one, then reduce-scatter": _back(reduces="each"),
        "the layer's backward pass starts from `y_gradient`, not from ones": _back(follows=False),
        "x has no gradient here, so the layers before get none: x.detach().requires_grad_(), and "
        "return its .grad": _back(detaches=False),
        "only the shard's gradient is a mean over the ranks: x is this rank's "
        "own, and so is its gradient": _back(of_x="divided"),
        "x is this rank's own, and so is its gradient: nothing of it is reduced": _back(of_x="averaged"),
        "the padding belongs to the end, where the shards have theirs": _back(pads="start"),
        "the gradients belong in the order of layer.parameters(), as the shards were cut": _back(order=-1),
        "the parameters are still gathered: release them": _back(releases=False),
        "the parameters' own gradients are still there, in full, and the next backward pass adds "
        "to them: set them to None": _back(clears=""),
        "gradients of zeros take as much memory as any: set them to None": _back(clears="zeroed"),
        "nothing was released, neither the parameters nor their own full gradients": _back(
            releases=False, clears=""
        ),
        "autograd adds what you return to shard.grad; you added it there yourself too": _back(adds=True),
        "right, but gathered twice: once is enough in a backward pass": _back(gathers=2),
        "right, but an all-reduce sends twice the bytes: each rank needs only its own part of the sum": _back(
            reduces="all"
        ),
    },
    praise="who keeps a shard can compute the whole layer, and afterwards keeps only a shard of its gradient",
)


# --- formulas


zero_3_largest_model = Exercise(
    reference=lambda memory, ranks, activations: ranks * (memory - activations) / 16,
    cases=(
        {"memory": 80e9, "ranks": 8, "activations": 20e9},
        {"memory": 24e9, "ranks": 2, "activations": 8e9},
    ),
    mistakes={
        "that is one GPU: stage 3 shards all sixteen bytes": lambda memory, ranks, activations: (
            (memory - activations) / 16
        ),
        "gradients and the twelve bytes are there too": lambda memory, ranks, activations: (
            ranks * (memory - activations) / 2
        ),
        "that is ZeRO-2, which replicates the parameters": lambda memory, ranks, activations: (
            (memory - activations) / (2 + 14 / ranks)
        ),
        "every rank has activations of its own": lambda memory, ranks, activations: (
            (ranks * memory - activations) / 16
        ),
    },
    praise="all states are partitioned and activations are not, so each rank gives what its own "
    "activations leave",
)
stage_3_units = Exercise(
    reference=lambda accumulation, checkpointing: accumulation * (4 if checkpointing else 3),
    cases=(
        {"accumulation": 4, "checkpointing": False},
        {"accumulation": 4, "checkpointing": True},
        {"accumulation": 1, "checkpointing": True},
    ),
    mistakes={
        "every micro-batch gathers and reduces anew": lambda accumulation, checkpointing: (
            4 if checkpointing else 3
        ),
        "that is stage 2's k + 1": lambda accumulation, checkpointing: accumulation + 1,
        "computing again needs the parameters again": lambda accumulation, checkpointing: 3 * accumulation,
        "gathered for the forward pass, and "
        "again for the backward pass": lambda accumulation, checkpointing: (
            accumulation * (3 if checkpointing else 2)
        ),
    },
    praise="who holds no layer must fetch it for every pass that uses it, in every micro-batch",
)
