"""Answers of lesson 07: ZeRO-1, and the mistakes that people make there."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped
from helpers.course.exercises.solutions import zero_1 as solutions
from helpers.course.exercises.trials import build, formula, randn_of_rank, returned
from helpers.tools.measure.traffic import Traffic


def _shapes(seed, ranks, even=False):
    """Shapes of five parameters.  The ranks divide the elements of none of the first four.  They divide all
    elements if `even`; else `ranks - 1` elements are missing, so that -len % ranks is not len % ranks."""
    shapes = [(5, 1 + ranks * (1 + seed % 3)), (1 + ranks,), (3, 1 + ranks), (1 + ranks * (1 + seed % 2),)]
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    return [*shapes, ((0 if even else 1) + ranks + -elements % ranks,)]


def _flattened(function, seed):
    """A total that is no multiple of the ranks, in fp32, and one that is, in bf16; what lives in it."""
    ranks, values = dist.get_world_size(), {}
    for case, dtype in (("", torch.float32), (", where nothing is to pad, in bf16", torch.bfloat16)):
        shapes = _shapes(seed, ranks, even=bool(case))
        parameters = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
        flat = returned(function(list(parameters), ranks), torch.Tensor, "flatten must return one tensor")
        values |= {
            f"the flat tensor{case}": flat.detach().clone(),
            f"the dtype of the flat tensor{case}": str(flat.dtype),
            f"the flat tensor belongs to no graph of autograd{case}": not flat.requires_grad,
            f"the shapes of the parameters{case}": [list(parameter.shape) for parameter in parameters],
        }
        flat.detach().add_(1)
        for index, parameter in enumerate(parameters):
            values[f"the model's parameter {index} after 1 was added to the flat tensor{case}"] = parameter
    return values


MISSING, STEP = "-len(flat) % ranks", "offset += parameter.numel()"
PIECE = "parameter.detach().flatten()"
PADDED = (PIECE, f"F.pad({PIECE}, (0, -parameter.numel() % ranks))")
flatten = build(solutions.flatten_solution, _flattened, together=True, mistakes={
    (MISSING, "0"): "without padding the flat tensor cannot be cut in equal shards",
    (MISSING, "ranks - len(flat) % ranks"):
        "where the elements are a multiple of the ranks already, nothing is to pad: -elements % ranks",
    (MISSING, "len(flat) % ranks"):
        "`len % ranks` elements are too many; what is missing to the next multiple is `-len % ranks`",
    (*PADDED, STEP, f"{STEP} + -parameter.numel() % ranks"):
        "only the joined tensor is padded, at its end, not each parameter",
    (*PADDED,): "each parameter was padded, and all that follow lie further back than you count: pad the "
        "joined tensor only",
    (f"(0, {MISSING})", f"({MISSING}, 0)", "offset = 0",
        "offset = len(flat) - sum(map(torch.numel, parameters))"): "the padding belongs to the end",
    ("parameter.data =", "_ ="): "the parameters of the model have memory of their own: assign to each one's "
        "`.data` a view of the flat tensor (a new Parameter in the list, or another value of the loop's "
        "variable, changes no model)",
    (".view_as(parameter)", ""): "a view has the shape of its parameter: `.view_as(parameter)`",
    (STEP, "pass"): "every parameter is a view of the beginning: count where each one starts",
    (STEP, "offset += len(parameter)"):
        "the next parameter starts `numel()` elements further, not `shape[0]`",
    (".detach()", ""):
        "the flat tensor must not be part of a graph of autograd: `detach()` the parameters first",
}, praise="write into the flat tensor and you write into the model: one all-gather updates all")  # fmt: skip


ADVICE = {  # {what torch says of a slip: what to do}
    "attempting to assign a gradient": "the master is fp32, and so is its gradient: cast this rank's shard, "
    "`mine.float()`",
    "for /: 'NoneType'": "a collective writes into the tensor that it is given and returns nothing of use",
    "'NoneType' object": "the master has no gradient until you assign one: `master.grad = ...`",
}


def _fit(call):
    """Says in plain words what gloo would refuse in its own, before the call begins."""
    mine, everything, *_ = call.arguments.values()
    advice = "pad the gradients to the length of `flat`"
    if call.name == "all_gather_into_tensor":
        mine, everything, advice = everything, mine, "what is written comes first"
    elif call.name != "reduce_scatter_tensor":
        return
    ranks, problem = dist.get_world_size(), ""
    if mine.requires_grad or everything.requires_grad:
        problem = "a message is no part of autograd's graph: hand in `.detach()` of what requires a gradient"
    elif mine.dtype != everything.dtype:
        problem = f"`mine` is {mine.dtype}, `everything` {everything.dtype}; a message has one dtype: "
        problem += "cast one of them with `.to()`"
    elif mine.numel() * ranks != everything.numel():
        problem = f"`mine` has {mine.numel()} elements and `everything` {everything.numel()}, not {ranks} "
        problem += f"times as many; mind the order of the two, and {advice}"
    if problem:
        raise ValueError(f"{call.name}: {problem}")


def _multiples(shape, parts):
    """Random multiples of 1 / `parts` up to 1.  Sums of eighths over a few ranks are exact in bf16.  Steps
    with a learning rate of 1/8 are exact in fp32, so that the order of a sum does not matter."""
    return torch.randint(-parts, parts + 1, shape) / parts


def _stepped(function, seed):
    """Two steps on random gradients, in fp32 and in bf16, beside the same steps in one process that has all
    masters and all gradients.  With SGD, since Adam hides a gradient of the wrong size."""
    rank, ranks, values = dist.get_rank(), dist.get_world_size(), {}
    for dtype in (torch.float32, torch.bfloat16):
        shapes = _shapes(seed, ranks)
        parameters = [nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes]
        flat = solutions.flatten_solution(parameters, ranks)
        places = [parameter.data_ptr() for parameter in parameters]
        full = nn.Parameter(_multiples(flat.shape, 4096))  # finer than bf16, which rounds them
        flat.copy_(full.detach())
        master = nn.Parameter(_own_part(full.detach()))
        optimizer, alone = (torch.optim.SGD([tensor], 1 / 8, momentum=1 / 2) for tensor in (master, full))
        most = 2 * (ranks - 1) * len(master) * flat.element_size()
        for step in (1, 2):
            by_rank = [[_multiples(shape, 8).to(dtype) for shape in shapes] for _ in range(ranks)]
            for parameter, gradient in zip(parameters, by_rank[rank]):
                parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
            with Traffic() as traffic, Calls(_fit), helped(ADVICE):
                function(list(parameters), flat, master, optimizer)
            mean = sum(torch.cat([part.flatten().float() for part in parts]) for parts in by_rank) / ranks
            full.grad = F.pad(mean, (0, len(flat) - len(mean)))
            alone.step()
            left = [parameter.grad for parameter in parameters if parameter.grad is not None]
            when = f", {str(dtype).removeprefix('torch.')}, step {step}"
            values |= {
                f"this rank's masters{when}": master.detach().clone(),
                f"they are those of one process{when}": master.equal(_own_part(full)),
                f"the flat tensor{when}": flat.detach().clone(),
                f"it is all masters of one process, rounded{when}": flat.equal(full.to(dtype)),
                f"the parameters are where they were in it{when}": places
                == [parameter.data_ptr() for parameter in parameters],
                f"the parameters' gradients that are left{when}": len(left),
                f"those of them that are not zero{when}": sum(bool(gradient.any()) for gradient in left),
                f"the master has no gradient left{when}": master.grad is None,
                f"at most the gradients and the parameters are sent once{when}": sum(traffic.ideal.values())
                <= most,
            }
    return values


def _own_part(tensor):
    """A copy of this rank's part of a tensor."""
    return tensor.chunk(dist.get_world_size())[dist.get_rank()].clone()


MEAN, FREE = "mine.float() / comm.get_world_size()", "parameter.grad = None"
REDUCE = "comm.reduce_scatter_tensor(mine, gradients)"
GATHER = "comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))"
zero_1_step = build(solutions.zero_1_step_solution, _stepped, together=True, mistakes={
    (MEAN, "mine.float()"): "that is the sum over the ranks; a mean is divided by their number",
    (MEAN, "mine.float() / 2"): "divide by the number of ranks, which is not always two",
    (REDUCE, "mine = _own_part(gradients)"):
        "that is the mean of nothing but this rank's own gradient: reduce it over the ranks",
    ("optimizer.step()", "pass"): "the masters are as before: the optimizer made no step, or the master had "
        "no gradient then (`zero_grad` comes after it)",
    (GATHER, "pass"): "the masters moved and no parameter did: all-gather the shards into the flat tensor",
    (GATHER, "flat.chunk(comm.get_world_size())[comm.get_rank()].copy_(master.detach())"):
        "this rank's shard is new, the others' are old: all-gather them",
    (GATHER, "pass", "optimizer.step()", f"{GATHER}\n    optimizer.step()"):
        "the shards were gathered before the optimizer's step",
    (GATHER, f"flat = torch.empty_like(flat)\n    {GATHER}\n    flatten_solution(parameters, 1)"):
        "the new parameters are in a tensor of their own, and `flat` is as before: gather into `flat`",
    (GATHER, f"master.data = master.to(flat.dtype).float()\n    {GATHER}"): "the master was rounded; it "
        "stays fp32, and only a copy of it is rounded: `master.detach().to(flat.dtype)`",
    (MEAN, f"{MEAN} ** 2"): "divided by the number of ranks twice",
    (FREE, "parameter.grad.zero_()"): "zeros take as much memory as gradients: set each `.grad` to None",
    (REDUCE, f"{REDUCE}\n    master.data.copy_(_own_part(flat))"):
        "the masters were taken from the rounded parameters again, and what rounding cut off is lost",
    (FREE, "pass"): "the parameters' gradients are still there, and the next backward pass adds to them",
    ("master.grad = None", "pass"): "the master keeps its fp32 gradient until the next step: set it to None",
    ("master.grad = None", "pass", FREE, "pass"):
        "nothing was freed: set the gradients of the parameters and of the master to None",
    (REDUCE, f"mine, gradients = mine.float(), gradients.float()\n    {REDUCE}"):
        "right, but in four bytes per gradient: send them in their own dtype, and cast this rank's shard",
    (REDUCE, "comm.all_reduce(gradients)\n    mine = _own_part(gradients)"): "right, but an all-reduce gives "
        "each rank all gradients, and costs twice the bytes: it needs its own shard only",
}, praise="you split the all-reduce into its halves and updated a shard per rank between them")  # fmt: skip


def _clipped(function, seed):
    """A gradient that is too long, one that is although rank 0's shard is short, and one that is not."""
    rank, values = dist.get_rank(), {}
    lengths = {
        "a long gradient": 1 + rank,
        "a gradient that is long on other ranks only": rank + 1e-2,
        "a short gradient": 1e-3 * (1 + rank),
    }
    for (case, length), shard in zip(lengths.items(), randn_of_rank(seed, 3, 40)):
        shard *= length
        norm = function(shard, 1.0)
        values[f"the norm of {case}"] = float("nan") if norm is None else float(norm)
        values[f"the shard of {case}"] = shard
    return values


clip_shard = build(solutions.clip_shard_solution, _clipped, together=True, mistakes={
    ("comm.all_reduce(total)", "pass"):
        "that is the norm of this rank's shard: the others' belong to the gradient too",
    ("gradient.square().sum()", "gradient.norm()", ".sqrt()", ""): "norms do not add up, their squares do",
    ("total.sqrt()", "(total / comm.get_world_size()).sqrt()"):
        "the squares are summed, not averaged: every rank has other elements",
    (".sqrt()", ""): "that is the square of the norm",
    ("if norm > max_norm", "if True"): "a gradient that is short enough stays as it is",
    ("gradient *= max_norm / norm", "pass"): "the norm is right, and the shard must be scaled, in place",
    ("if norm > max_norm", "if gradient.norm() > max_norm"):
        "the norm of the whole gradient decides whether to clip, not that of this rank's shard",
}, praise="squares add up across ranks; norms don't. That is the 4-byte message you saw above")  # fmt: skip


zero_1_ranks_needed = formula(solutions.ranks_needed_solution, [(7.5e9, 40e9), (1e9, 16e9)], mistakes={
    (" - 4 * parameters", ""): "four bytes per parameter stay on every rank",
    ("12 *", "16 *", " - 4 * parameters", ""): "not all sixteen are sharded",
    ("12 * parameters / (memory - 4 * parameters)", "(memory - 4 * parameters) / (12 * parameters)"):
        "the other way round",
}, praise="each rank keeps 4 bytes per parameter; if these fill its memory, no N is enough")  # fmt: skip
