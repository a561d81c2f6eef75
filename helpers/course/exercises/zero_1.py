"""Answers of lesson 07: ZeRO-1, and the mistakes that people make there."""

import contextlib

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.tools.measure.traffic import Traffic

__all__ = ["clip_shard", "flatten", "guess", "zero_1_ranks_needed", "zero_1_step"]


# --- parameters in one flat tensor


def _shapes(seed, ranks, even=False):
    """Shapes of four parameters whose elements are, or are not, a multiple of the ranks; none of them is by
    itself."""
    ranks = max(ranks, 2)
    shapes = [(5, 1 + ranks * (1 + seed % 3)), (1 + ranks,), (3, 1 + ranks), (1 + ranks * (1 + seed % 2),)]
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    rest = (
        -elements if even else 1 - elements
    ) % ranks  # one element too many, so that `ranks - 1` are missing: -len % ranks is not len % ranks
    return [*shapes, (rest + ranks,)]


def _parameters(shapes, dtype):
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]


def _flattened(function, seed):
    """A total that is no multiple of the ranks, in fp32, and one that is, in bf16; the flat tensor, and
    whether the parameters live in it."""
    import deepspeed.comm as comm

    ranks, found = comm.get_world_size(), {}
    for case, even, dtype in (
        ("", False, torch.float32),
        (", where nothing is to pad, in bf16", True, torch.bfloat16),
    ):
        parameters = _parameters(
            _shapes(seed, ranks, even), dtype
        )  # as a model has them: what a function does with its list changes no model
        shapes = [list(parameter.shape) for parameter in parameters]
        flat = function(list(parameters), ranks)
        if not isinstance(flat, torch.Tensor):
            raise TypeError(f"flatten must return one tensor, not a {type(flat).__name__}")
        found[f"the shape of the flat tensor{case}"] = list(flat.shape)
        found[f"the flat tensor{case}"] = flat.detach().clone()
        found[f"the dtype of the flat tensor{case}"] = str(flat.dtype)
        found[f"the flat tensor belongs to no graph of autograd{case}"] = not flat.requires_grad
        found[f"the shapes of the parameters{case}"] = [
            list(parameter.shape) for parameter in parameters
        ] == shapes
        flat.detach().add_(1)
        for index, parameter in enumerate(parameters):
            found[f"the model's parameter {index} after 1 was added to the flat tensor{case}"] = (
                parameter.detach().clone()
            )
    return found


def _flat(pad="end", views=True, offset="elements", detach=True):
    """A way to flatten that makes the mistake that is named; without one it is right."""

    def flatten(parameters, ranks):
        pieces = [(parameter.detach() if detach else parameter).flatten() for parameter in parameters]
        if pad.startswith("each"):
            pieces = [F.pad(piece, (0, -len(piece) % ranks)) for piece in pieces]
        flat = torch.cat(pieces)
        extra = {"always": ranks - len(flat) % ranks, "never": 0, "the rest": len(flat) % ranks}.get(
            pad, -len(flat) % ranks
        )
        flat = F.pad(flat, (extra, 0) if pad == "start" else (0, extra))
        at = extra if pad == "start" else 0
        for parameter, piece in zip(parameters, pieces):
            part = flat[at : at + parameter.numel()]
            part = part if views == "flat" else part.view_as(parameter)
            if views:
                parameter.data = part.detach()
            else:
                parameter.data.copy_(part.detach())
            at += {"rows": len(parameter), "never": 0}.get(
                offset, parameter.numel() if pad == "each, not counted" else len(piece)
            )
        return flat

    return flatten


flatten = Build(
    "flatten",
    _flattened,
    mistakes={
        "without padding the flat tensor cannot be cut in equal shards": _flat(pad="never"),
        "where the elements are a multiple of the ranks already, nothing is to pad: -elements % ranks": _flat(
            pad="always"
        ),
        "`len % ranks` elements are too many; what is missing to the next multiple is `-len % ranks`": _flat(
            pad="the rest"
        ),
        "only the joined tensor is padded, at its end, not each parameter": _flat(pad="each"),
        "each parameter was padded, and all that follow lie further back than you count: pad the "
        "joined tensor only": _flat(pad="each, not counted"),
        "the padding belongs to the end": _flat(pad="start"),
        "the parameters of the model have memory of their own: assign to each one's `.data` a "
        "view of the flat tensor (a new Parameter in the list, "
        "or another value of the loop's variable, changes no model)": _flat(views=False),
        "a view has the shape of its parameter: `.view_as(parameter)`": _flat(views="flat"),
        "every parameter is a view of the beginning: count where each one starts": _flat(offset="never"),
        "the next parameter starts `numel()` elements further, not `shape[0]`": _flat(offset="rows"),
        "the flat tensor must not be part of a graph of autograd: `detach()` the parameters first": _flat(
            detach=False
        ),
    },
    praise="who writes into the flat tensor writes into the model, so one all-gather brings all new "
    "weights home",
)


# --- a step of ZeRO-1


def _right_flat(parameters, ranks):
    return _flat()(parameters, ranks)


def _random_gradients(parameters):
    """For each parameter eighths, whose sums over a few ranks bf16 holds exactly, so that the order of a sum
    does not matter."""
    return [(torch.randint(-8, 9, parameter.shape) / 8).to(parameter.dtype) for parameter in parameters]


def _optimizer(parameters, dtype):
    """SGD in fp32, which sees the size of a gradient; Adam in bf16, which divides by it."""
    if dtype == torch.float32:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)
    return torch.optim.AdamW(parameters, lr=1e-3)


ADVICE = {  # {what torch says of a slip: what to do}
    "attempting to assign a gradient": "the master is fp32, and so is its gradient: cast this rank's shard, "
    "`mine.float()`",
    "unsupported operand type(s) for /: 'NoneType'": "a collective writes into the tensor that it is given "
    "and returns nothing of use",
    "'NoneType' object has no attribute": "the master has no gradient until you "
    "assign one: `master.grad = ...`",
}


@contextlib.contextmanager
def _with_words():
    """The step's two collectives with words for what gloo would refuse in its own; other slips of `ADVICE`
    get words too."""
    import deepspeed.comm as comm

    ranks, scatter, gather = comm.get_world_size(), comm.reduce_scatter_tensor, comm.all_gather_into_tensor

    def fit(call, mine, everything, advice):
        if mine.requires_grad or everything.requires_grad:
            raise ValueError(
                f"{call}: a message is no part of autograd's graph: hand in `.detach()` of what "
                "requires a gradient"
            )
        if mine.dtype != everything.dtype:
            raise ValueError(
                f"{call}: `mine` is {mine.dtype}, `everything` {everything.dtype}; a message has "
                "one dtype: cast one of them with `.to()`"
            )
        if mine.numel() * ranks != everything.numel():
            lengths = f"`mine` has {mine.numel()} elements and `everything` {everything.numel()}"
            raise ValueError(f"{call}: {lengths}, which is not {ranks} times as many; {advice}")

    def reduce_scatter_tensor(output, tensor, *more, **options):
        fit(
            "reduce_scatter_tensor(mine, everything)",
            output,
            tensor,
            "mind the order of the two, and pad the gradients to the length of `flat`",
        )
        return scatter(output, tensor, *more, **options)

    def all_gather_into_tensor(output, tensor, *more, **options):
        fit(
            "all_gather_into_tensor(everything, mine)",
            tensor,
            output,
            "mind the order of the two: what is written comes first",
        )
        return gather(output, tensor, *more, **options)

    comm.reduce_scatter_tensor, comm.all_gather_into_tensor = reduce_scatter_tensor, all_gather_into_tensor
    try:
        yield
    except (RuntimeError, TypeError, AttributeError) as error:
        advice = next((words for said, words in ADVICE.items() if said in str(error)), "")
        if not advice:
            raise
        raise type(error)(f"{advice} ({str(error).splitlines()[0].split('. ')[0]})").with_traceback(
            error.__traceback__
        ) from None
    finally:
        comm.reduce_scatter_tensor, comm.all_gather_into_tensor = scatter, gather


def _stepped(function, seed):
    """Two steps on random gradients, in fp32 and in bf16; the masters, the flat tensor, what one process has,
    what is left and what was sent."""
    import deepspeed.comm as comm

    rank, ranks, found = comm.get_rank(), comm.get_world_size(), {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(seed)
        parameters = _parameters(_shapes(seed, ranks), dtype)
        flat = _right_flat(parameters, ranks)
        full = nn.Parameter(flat.float().clone())  # the same in one process: all masters, all gradients
        master = nn.Parameter(flat.chunk(ranks)[rank].float().clone())
        optimizer, alone = _optimizer([master], dtype), _optimizer([full], dtype)
        shard_bytes = flat.element_size() * len(master)
        for step in (1, 2):
            every = [_random_gradients(parameters) for _ in range(ranks)]  # the same numbers on every rank
            for parameter, gradient in zip(parameters, every[rank]):
                parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
            with Traffic() as traffic, _with_words():
                function(list(parameters), flat, master, optimizer)
            sums = [sum(gradients) for gradients in zip(*every)]
            full.grad = F.pad(
                torch.cat([one.flatten().float() for one in sums]) / ranks,
                (0, len(flat) - sum(one.numel() for one in sums)),
            )
            alone.step()
            when = f", {str(dtype).removeprefix('torch.')}, step {step}"
            found |= _after_step(when, parameters, flat, master, full)
            found[f"at most the gradients and the parameters are sent once{when}"] = (
                sum(traffic.ideal.values()) <= 2 * (ranks - 1) * shard_bytes
            )
    return found


def _after_step(when, parameters, flat, master, full):
    import deepspeed.comm as comm

    ranks = comm.get_world_size()
    masters = [torch.empty_like(master) for _ in range(ranks)]
    torch.distributed.all_gather(masters, master.detach().contiguous())
    rounded = torch.cat(masters).detach().to(flat.dtype)
    right = full.detach().chunk(ranks)[comm.get_rank()]
    begin, end = flat.data_ptr(), flat.data_ptr() + flat.numel() * flat.element_size()
    left = [one.grad is not None and bool(one.grad.any()) for one in parameters if one.grad is not None]
    found = {f"this rank's masters{when}": master.detach().clone()}
    found[f"they are those of one process{when}"] = bool(
        (master.detach() - right).abs().max() <= 1e-5 * right.abs().max()
    )
    if flat.dtype == torch.float32:
        found[f"the flat tensor{when}"] = flat.detach().clone()
    for owner, piece in enumerate(flat.detach().chunk(ranks)):
        found[f"the shard of rank {owner} in the flat tensor is its masters, rounded{when}"] = bool(
            (piece == rounded.chunk(ranks)[owner]).all()
        )
    found[f"the parameters are views of the flat tensor{when}"] = all(
        begin <= one.data_ptr() < end for one in parameters
    )
    found[f"the parameters' gradients that are left{when}"] = len(left)
    found[f"of these, gradients that are not zero{when}"] = sum(left)
    found[f"the master has no gradient left{when}"] = master.grad is None
    return found


def _zero_1(reduces="scatter", divides="once", steps=True, gathers="after", frees="both", masters="kept"):
    """A step that makes the mistake that is named; without one it is right."""

    def zero_1_step(parameters, flat, master, optimizer):
        import deepspeed.comm as comm

        rank, ranks = comm.get_rank(), comm.get_world_size()
        gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
        gradients = F.pad(gradients, (0, len(flat) - len(gradients)))
        mine = gradients.chunk(ranks)[rank].clone()
        whole = torch.empty_like(flat) if gathers == "into a new tensor" else flat
        if reduces == "in fp32":
            gradients, mine = gradients.float(), mine.float()
        if reduces in ("scatter", "in fp32"):
            comm.reduce_scatter_tensor(mine, gradients)
        elif reduces == "all":
            comm.all_reduce(gradients)
            mine = gradients.chunk(ranks)[rank].clone()
        if masters == "from the parameters":
            master.data.copy_(flat.chunk(ranks)[rank])
        master.grad = mine.float() / {"never": 1, "once": ranks, "twice": ranks**2, "by two": 2}[divides]
        if gathers == "before":
            comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))
        if steps:
            optimizer.step()
        if masters == "rounded":
            master.data.copy_(master.detach().to(flat.dtype))
        if gathers in ("after", "into a new tensor"):
            comm.all_gather_into_tensor(whole, master.detach().to(flat.dtype))
        elif gathers == "own only":
            flat.chunk(ranks)[rank].copy_(master.detach())
        master.grad = None if frees in ("both", "master", "zeros") else master.grad
        at = 0
        for parameter in parameters:
            if gathers == "into a new tensor":
                parameter.data = whole[at : at + parameter.numel()].view_as(parameter)
                at += parameter.numel()
            zeros = torch.zeros_like(parameter) if frees == "zeros" else parameter.grad
            parameter.grad = None if frees in ("both", "parameters") else zeros

    return zero_1_step


zero_1_step = Build(
    "zero_1_step",
    _stepped,
    mistakes={
        "that is the sum over the ranks; a mean is divided by their number": _zero_1(divides="never"),
        "divide by the number of ranks, which is not always two": _zero_1(divides="by two"),
        "that is the mean of nothing but this rank's own gradient: reduce it over the ranks": _zero_1(
            reduces="nothing"
        ),
        "the masters are as before: the optimizer made no step, or the master had no gradient "
        "then (`zero_grad` comes after it)": _zero_1(steps=False),
        "the masters moved and no parameter did: all-gather the shards into the flat tensor": _zero_1(
            gathers="never"
        ),
        "this rank's shard is new, the others' are old: all-gather them": _zero_1(gathers="own only"),
        "the shards were gathered before the optimizer's step": _zero_1(gathers="before"),
        "the new parameters are in a tensor of their own, and `flat` is as "
        "before: gather into `flat`": _zero_1(gathers="into a new tensor"),
        "the master was rounded; it stays fp32, and only a copy of it is rounded: "
        "`master.detach().to(flat.dtype)`": _zero_1(masters="rounded"),
        "divided by the number of ranks twice": _zero_1(divides="twice"),
        "zeros take as much memory as gradients: set each `.grad` to None": _zero_1(frees="zeros"),
        "the masters were taken from the rounded parameters again, and "
        "what rounding cut off is lost": _zero_1(masters="from the parameters"),
        "the parameters' gradients are still there, and the next backward pass adds to them": _zero_1(
            frees="master"
        ),
        "the master keeps its fp32 gradient until the next step: set it to None": _zero_1(frees="parameters"),
        "nothing was freed: set the gradients of the parameters and of the master to None": _zero_1(
            frees="neither"
        ),
        "right, but in four bytes per gradient: send them in their own dtype, and cast this "
        "rank's shard": _zero_1(reduces="in fp32"),
        "right, but an all-reduce gives each rank all gradients, and costs twice the bytes: it "
        "needs its own shard only": _zero_1(reduces="all"),
    },
    praise="what an all-reduce does at once is done in two halves, with the update between them, on one "
    "shard per rank",
)


# --- clipping, of sharded gradients


def _clipped(function, seed):
    """A gradient that is too long and one that is not; each rank has a shard of another length."""
    import deepspeed.comm as comm

    random, found = torch.Generator().manual_seed(1000 * (seed % 10**6) + comm.get_rank()), {}
    for case, times in (("of a long gradient", 1.0), ("of a short gradient", 1e-3)):
        shard = times * (1 + comm.get_rank()) * torch.randn(40, generator=random)
        norm = function(shard, 1.0)
        found[f"the norm {case}"] = float("nan") if norm is None else float(norm)
        found[f"the shard {case}"] = shard
    return found


def _clip(norm="all", root=True, only_long=True, scales=True):
    """A way to clip that makes the mistake that is named."""

    def clip_shard(gradient, max_norm):
        import deepspeed.comm as comm

        total = gradient.norm() if norm == "sum of norms" else gradient.square().sum()
        if norm != "own":
            comm.all_reduce(total)
        if norm == "mean":
            total /= comm.get_world_size()
        total = total.sqrt() if root and norm != "sum of norms" else total
        if scales and (total > max_norm or not only_long):
            gradient *= max_norm / total
        return total

    return clip_shard


clip_shard = Build(
    "clip_shard",
    _clipped,
    mistakes={
        "that is the norm of this rank's shard: the others' belong to the gradient too": _clip(norm="own"),
        "norms do not add up, their squares do": _clip(norm="sum of norms"),
        "the squares are summed, not averaged: every rank has other elements": _clip(norm="mean"),
        "that is the square of the norm": _clip(root=False),
        "a gradient that is short enough stays as it is": _clip(only_long=False),
        "the norm is right, and the shard must be scaled, in place": _clip(scales=False),
    },
    praise="one number per rank travels, which is the message of 4 bytes that you saw above",
)


# --- a formula

zero_1_ranks_needed = Exercise(
    reference=lambda parameters, memory: 12 * parameters / (memory - 4 * parameters),
    cases=({"parameters": 7.5e9, "memory": 40e9}, {"parameters": 1e9, "memory": 16e9}),
    mistakes={
        "four bytes per parameter stay on every rank": lambda parameters, memory: 12 * parameters / memory,
        "not all sixteen are sharded": lambda parameters, memory: 16 * parameters / memory,
        "the other way round": lambda parameters, memory: (memory - 4 * parameters) / (12 * parameters),
    },
    praise="what is replicated comes off each rank's memory first, and if nothing is left no number of "
    "ranks is enough",
)
