"""Answers of lesson 07: the rungs of ZeRO-1's step, a bug to plant, and mistakes that people make there."""

from helpers.course.exercises import zero_1_held
from helpers.course.exercises import zero_1_pictures as pictures
from helpers.course.exercises import zero_1_trials as trials
from helpers.course.exercises.faults import fault
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions import zero_1 as solutions
from helpers.course.exercises.trials import build, formula

MISSING, STEP = "-len(flat) % ranks", "offset += parameter.numel()"
PIECE = "parameter.detach().flatten()"
PADDED = (PIECE, f"F.pad({PIECE}, (0, -parameter.numel() % ranks))")
flatten = build(solutions.flatten_solution, trials.flattened, together=True, mistakes={
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
}, praise="write into the flat tensor and you write into the model",
    example=pictures.where_each_lies)  # fmt: skip

own_shard = build(solutions.own_shard_solution, trials.sharded, mistakes={
    (".clone()", ""): "in fp32 `.float()` copies nothing, so the master is a piece of `flat`: `.clone()` it",
    (".float()", ""): "the master is fp32 whatever the model is; bf16 rounds small updates away",
    ("[rank]", "[0]"): "that is rank 0's shard on every rank",
    ("torch.nn.Parameter(shard.float().clone())", "shard.float().clone()"):
        "an optimizer updates parameters: wrap the shard in `torch.nn.Parameter`",
}, praise="Adam will make its two means for this copy and for nothing else",
    example=pictures.small_updates)  # fmt: skip

MEAN, REDUCE = "mine.float() / comm.get_world_size()", "comm.reduce_scatter_tensor(mine, gradients)"
reduce_to_owner = build(solutions.reduce_to_owner_solution, trials.reduced, together=True, mistakes={
    (MEAN, "mine.float()"): "that is the sum over the ranks; a mean is divided by their number",
    (MEAN, "mine.float() / 2"): "divide by the number of ranks, which is not always two",
    (MEAN, f"{MEAN} ** 2"): "divided by the number of ranks twice",
    (MEAN, "mine / comm.get_world_size()"):
        "the gradient is right in bf16; the master is fp32, and so is its gradient: `mine.float()`",
    (REDUCE, "mine = own_part(gradients)"):
        "that is the mean of nothing but this rank's own gradient: reduce it over the ranks",
    (REDUCE, f"mine, gradients = mine.float(), gradients.float()\n    {REDUCE}"):
        "right, but in four bytes per gradient: send them in their own dtype, and cast this rank's shard",
    (REDUCE, "comm.all_reduce(gradients)\n    mine = own_part(gradients)"): "right, but an all-reduce gives "
        "each rank all gradients, and costs twice the bytes: it needs its own shard only",
}, praise="each owner gets the mean of its own shard, and nobody gets more",
    example=pictures.ranks_numbers_reduced)  # fmt: skip

clip_shard = build(solutions.clip_shard_solution, trials.clipped, together=True, mistakes={
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
}, praise="squares add up across ranks; norms don't", example=pictures.ranks_numbers_clipped)  # fmt: skip

GATHER = "comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))"
step_and_gather = build(solutions.step_and_gather_solution, trials.gathered, together=True, mistakes={
    ("optimizer.step()", "pass"): "the masters are as before: the optimizer made no step, or the master had "
        "no gradient then (`zero_grad` comes after it)",
    (GATHER, "pass"): "the masters moved and no parameter did: all-gather the shards into `flat`, not into "
        "a new tensor",
    (GATHER, "flat.chunk(comm.get_world_size())[comm.get_rank()].copy_(master.detach())"):
        "this rank's shard is new, the others' are old: all-gather them",
    (GATHER, "pass", "optimizer.step()", f"{GATHER}\n    optimizer.step()"):
        "the shards were gathered before the optimizer's step",
    (GATHER, f"master.data = master.to(flat.dtype).float()\n    {GATHER}"): "the master was rounded; it "
        "stays fp32, and only a copy of it is rounded: `master.detach().to(flat.dtype)`",
    ("master.grad = gradient", "master.data.copy_(own_part(flat))\n    master.grad = gradient"):
        "the masters were taken from the rounded parameters again, and what rounding cut off is lost",
    ("master.grad = None", "pass"): "the master keeps its fp32 gradient until the next step: set it to None",
}, praise="the parameters are views of `flat`, so the model is up to date already",
    example=pictures.ranks_numbers_stepped)  # fmt: skip

FREE, CLIP = "parameter.grad = None", "clip_shard(gradient, max_norm)"
UPDATE = "step_and_gather(flat, master, optimizer, gradient)"
zero_1_step = build(solutions.zero_1_step_solution, trials.stepped, together=True,
    rungs=(reduce_to_owner, clip_shard, step_and_gather), mistakes={
    (UPDATE, "pass"): "no weight moved: step and gather",
    (UPDATE, f"{UPDATE}\n    {UPDATE}"): "the optimizer stepped twice",
    (f"norm = {CLIP}\n    {UPDATE}", f"{UPDATE}\n    norm = {CLIP}"):
        "the optimizer got the gradient as it was before clipping: hand `max_norm` on, and clip before the "
        "step",
    ("return norm", "return gradient.norm()"):
        "that is the norm of this rank's shard after clipping: return what clip_shard returned",
    (FREE, "parameter.grad.zero_()"): "zeros take as much memory as gradients: set each `.grad` to None",
    (FREE, "pass"): "the parameters' gradients are still there, and the next backward pass adds to them",
}, praise="you split the all-reduce into its halves and updated a shard per rank between them")  # fmt: skip

undivided = fault(solutions.undivided_solution, reduce_to_owner, mistakes={
    "that divides a second time": ("* comm.get_world_size()", "/ comm.get_world_size()"),
})  # fmt: skip

SHARD, STATES = "2 * -(-psi // (2 * ranks))", "8 * shard + 4"
zero_1_bytes = build(solutions.zero_1_bytes_solution, zero_1_held.held, worlds=(2, 3), mistakes={
    (SHARD, "psi / ranks"): "that is without padding: a shard has a whole, even number of elements",
    (SHARD, "psi // ranks"): "that rounds down, and the last elements have no owner: round up",
    (SHARD, "-(-psi // ranks)"): "that rounds up to a whole number, and a shard's is even: round up to a "
        "multiple of 2 * ranks",
    ("2 * ranks * shard", "2 * psi"): "parameters are views of the flat tensor, and its padding is held too",
    ("2 * ranks * shard", "2 * shard"): "stage 1 shards no parameters: every rank has the flat tensor",
    ("2 * psi", "2 * ranks * shard"): "each gradient has a tensor of its own here, so none is padded",
    ("2 * psi", "2 * shard"): "gradients are not sharded at stage 1: every backward pass makes all of them",
    ("4 * shard", "2 * shard"): "masters are fp32",
    ("4 * shard", "4 * psi"): "a rank has the masters of its shard only",
    (STATES, "8 * shard"): "the states have a count of steps too, 4 bytes",
    (STATES, "4 * shard + 4"): "Adam has two means",
    (STATES, "8 * psi + 4"): "a rank has the means of its shard only",
    (STATES, "4 * shard + 4", "4 * shard,", "2 * shard,"): "masters and means are fp32",
    ("2 * bucket", "bucket"): "`bucket` counts elements of bf16",
}, praise="to the byte, on a model that does not divide")  # fmt: skip

zero_1_ranks_needed = formula(solutions.ranks_needed_solution, [(7.5e9, 40e9), (1e9, 16e9)], mistakes={
    (" - 4 * parameters", ""): "four bytes per parameter stay on every rank",
    ("12 *", "16 *", " - 4 * parameters", ""): "not all sixteen are sharded",
    ("12 * parameters / (memory - 4 * parameters)", "(memory - 4 * parameters) / (12 * parameters)"):
        "the other way round",
}, praise="each rank keeps 4 bytes per parameter; if these fill its memory, no N is enough")  # fmt: skip
