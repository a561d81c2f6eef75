"""Answers of lesson 16: experts for tokens, the way there and back, balance and messages; usual mistakes."""

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped
from helpers.course.exercises.solutions import experts as solutions
from helpers.course.exercises.trials import build, formula, randn_of_rank, returned
from helpers.course.exercises.trials import summed as summed
from helpers.tools import theory
from helpers.tools.measure.traffic import Traffic


def _pair(answer):
    """The two tensors of an answer as int64."""
    pair = answer if isinstance(answer, (tuple, list)) and len(answer) == 2 else [None]
    if not all(isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() for tensor in pair):
        due = "two tensors of whole numbers (int64), those of experts and of rows"
        raise TypeError(f"route must return {due}, not {answer!r}")
    return [tensor.long() for tensor in pair]


def _routed(function, seed):
    """The routes of random tokens, some of whose experts are asked for far more than they can take."""
    seen = {}
    cases = ((1, 2), (1, 40), (2, 3), (2, 40), (3, 4))  # choices of a token, rows of an expert
    for place, (k, capacity) in enumerate(cases):
        tokens, experts = 13 + (seed + place) % 5, 4 + (seed + place) % 3
        liked = torch.linspace(0, 3, experts)[torch.randperm(experts)]  # the router prefers some experts
        probabilities = (randn_of_rank(seed + place, tokens, experts) + liked).softmax(-1)
        before = probabilities.clone()
        expert, slot = _pair(function(probabilities, k, capacity))
        case = f"k = {k}, capacity {capacity}"
        seen |= {
            f"expert, {case}": expert,
            f"slot, {case}": slot,
            f"probabilities are as they were, {case}": before.equal(probabilities),
        }
    return seen


BY_PROBABILITY = """torch.empty_like(served)
    queue = probabilities.topk(k).values.T.flatten().argsort(descending=True)
    row[queue] = ((asked[queue].cumsum(0) - 1) * asked[queue]).sum(1)"""
route = build(solutions.route_solution, _routed, worlds=(1, 2), mistakes={
    ("expert.T.flatten()", "expert.flatten()", "view(k, tokens).T", "view(tokens, k)"):
        "the first choices of all tokens come before any second choice",
    ("cumsum(0) - 1", "cumsum(0)"): "rows are counted from 0",
    (">= capacity", "> capacity"): "an expert takes `capacity` rows, those from 0 to capacity - 1",
    (">= capacity", ">= capacity - 1"): "one row of every expert stays empty: the last is capacity - 1",
    (".masked_fill(slot >= capacity, -1)", ""): "what finds no row gets the slot -1",
    ("capacity, -1", "capacity, capacity - 1"):
        "a row belongs to one choice: what finds none gets the slot -1, not a row that is taken",
    ("capacity, -1", "capacity, 0"):
        "row 0 belongs to the token that came first: what finds no row gets the slot -1",
    ("return expert,", "return expert.masked_fill(slot >= capacity, -1),"):
        "leave the number of the expert where a choice is dropped; only its slot is -1",
    ("asked.cumsum(0)", "torch.cat([part.cumsum(0) for part in asked.split(tokens)])"):
        "second choices go on counting where the first ones ended, else two tokens share a row",
    ("topk(k)", "topk(k, largest=False)"): "the router's favourites are the largest probabilities",
    ("((asked.cumsum(0) - 1) * asked).sum(1)", BY_PROBABILITY):
        "within a choice the rows go to tokens in their order, not by their probability",
    ("view(k, tokens).T", "view(tokens, k)"):
        "the slots are in the order in which choices were served, all first ones first: `.view(k, tokens).T`",
    ("return expert,", "return expert.T,", ", -1)", ", -1).T"):
        "both are of shape (tokens, k): a row for each token",
}, praise="first choices come before second ones, in the order of tokens; the rest is dropped")  # fmt: skip


SLIPS = {
    "must be contiguous": "rows, and a gradient, may be a transposed view: send `rows.contiguous()`, and "
    "receive in a contiguous tensor",
    "does not require grad": "no gradient comes back from the answers: send with `Exchange.apply`, which "
    "autograd knows, both ways",
}


def _exchanged(function, seed):
    """The operator in the middle of other work, in fp32 and float64; what comes in is not contiguous."""
    shape, seen = (3 + seed % 2, 2 * dist.get_world_size(), 4), {}
    due = "forward must return what was received: all_to_all_single fills its first tensor, and returns none"
    for dtype in (torch.float32, torch.float64):
        x = randn_of_rank(seed, *shape).to(dtype).requires_grad_()
        rows = (x * 1.0).transpose(0, 1)
        before = rows.detach().clone()
        with Traffic() as traffic, helped(SLIPS):
            result = returned(function.apply(rows), torch.Tensor, due)
            (result.transpose(0, 1) * randn_of_rank(seed + 1, *shape).to(dtype)).sum().backward()
        sent = sum(traffic.ideal.values())
        seen |= {
            f"what was received, {dtype}": result,
            f"its dtype, {dtype}": str(result.dtype),
            f"the gradient of rows, {dtype}": x.grad,
            f"what was given to forward is as it was, {dtype}": rows.detach().equal(before),
            f"there and back a rank sends less than twice its rows, {dtype}": sent < 2 * x.nbytes,
        }
    return seen


SEND = "comm.all_to_all_single(received, rows.contiguous())"
BACK = "Exchange_solution.forward(context, gradient)"
GATHERING = """ranks = comm.get_world_size()
        everything = rows.new_empty(ranks * len(rows), *rows.shape[1:])
        comm.all_gather_into_tensor(everything, rows.contiguous())
        received = everything.unflatten(0, (ranks, ranks, -1))[:, comm.get_rank()].flatten(0, 1)"""
# Forward alone: a gradient, which `backward` hands to `forward`, asks for no gradient itself.
FORWARD = "if rows.requires_grad else received"
Exchange = build(solutions.Exchange_solution, _exchanged, mistakes={
    (SEND, "received.copy_(rows)"):
        "what belongs to other ranks must be sent to them: all_to_all_single in `forward`",
    (BACK, "gradient"):
        "backward, the gradient of what was sent lies on the rank that received it: it must come back",
    ("return received", f"return rows.clone() {FORWARD}"): "forward nothing was sent",
    (BACK, "summed(gradient)"): "each gradient has one place to go back to: nothing is summed",
    (BACK, f"{BACK} / torch.distributed.get_world_size()"):
        "a row that goes to one rank has one gradient; there is nothing to average",
    (SEND, "comm.all_reduce(received.copy_(rows))"): "that sums the ranks' rows: each part goes to one rank",
    ("return received", f"return received / comm.get_world_size() {FORWARD}"):
        "forward a row is sent, not a part of it",
    (SEND, GATHERING): "an all-gather sends everything to everybody; each rank needs only its part of it",
}, praise="both passes are the same exchange: what was sent to a rank comes back from it")  # fmt: skip


def _through(function, seed):
    """Answers and gradients of experts that have, on every rank, weights of their own."""
    number, capacity, width = 2 + seed % 2, 3 + seed % 3, 4 + seed % 2
    torch.manual_seed(1000 * (seed % 10**6) + dist.get_rank())
    layers = [nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, width)) for _ in range(number)]
    experts = nn.ModuleList(layers)
    rows = randn_of_rank(seed, number * dist.get_world_size(), capacity, width).requires_grad_()
    due = "through_experts must return a tensor of the shape of rows"
    answers = returned(function(rows, experts), torch.Tensor, due)
    with helped(SLIPS):
        (answers * randn_of_rank(seed + 1, *answers.shape)).sum().backward()
    return {"the answers": answers, "the gradient of rows": rows.grad} | {
        f"the gradient of {name}, first the expert's number": parameter.grad
        for name, parameter in experts.named_parameters()
    }


THERE, STACKED = "Exchange.apply(rows)", "torch.stack(answers, 1)"
REPLY = f"Exchange.apply({STACKED}.view_as(rows))"
VIEW = "view(comm.get_world_size(), len(experts), *rows.shape[1:])"
through_experts = build(solutions.through_experts_solution, _through, together=True, rungs=[
    Exchange,
], mistakes={
    (VIEW, "view(len(experts), comm.get_world_size(), *rows.shape[1:]).transpose(0, 1)", "answers, 1",
        "answers"): "what arrives is ordered by the rank it comes from, and within that by expert",
    (STACKED, "torch.stack(answers)"):
        "the answers must go back in the order of the rows: by rank, and within that by expert",
    (THERE, f"{THERE}.flip(0)"): "what arrives is in the order of the ranks, not in the opposite one",
    (REPLY, f"{STACKED}.view_as(rows)"): "the answers must go back to the ranks that asked: exchange twice",
    (THERE, "rows"): "rows must be sent to the ranks of their experts before an expert sees them",
    (THERE, "rows", REPLY, f"{STACKED}.view_as(rows)"):
        "nothing was sent: most of these rows are for the experts of other ranks",
    ("expert(arrived", "experts[0](arrived"): "each expert has rows of its own: all went to the first",
    (THERE, "Exchange.apply(rows.detach())", REPLY, f"{REPLY}.detach() + 0 * rows"):
        "no gradient comes back: send with `Exchange.apply`, which autograd knows",
    (REPLY, f"{REPLY} / comm.get_world_size()"): "every rank gets its answers once: divide nothing",
}, praise="two exchanges: rows to the ranks of their experts, and the answers back")  # fmt: skip


def _bytes(tokens, experts, k, factor, width, element_bytes):
    capacity = theory.expert_capacity(tokens, experts, k, factor)
    return theory.all_to_all_bytes(experts, capacity, width, element_bytes)


message_bytes = formula(solutions.message_bytes_solution, reference=_bytes, cases=[
    (128, 8, 1, 1.0, 64, 4), (4096, 8, 2, 1.25, 4096, 2), (100, 8, 2, 1.0, 16, 2), (100, 8, 1, 1.5, 16, 2),
], mistakes={
    ("tokens * k *", "tokens *"): "the capacity counts choices, of which a token has k",
    ("math.ceil(", "("): "an expert takes whole tokens: round its capacity up",
    ("math.ceil(", "int("): "an expert takes whole tokens: round up, not down",
    ("return experts * ", "return "): "that is one expert's part: the message has rows for all of them",
    ("k * factor", "k"): "empty rows are sent too, and the factor says how many there are",
    ("tokens * k *", "tokens *", "return", "return k *"):
        "round up once, the capacity: a token's k choices go to different experts",
    ("return", "return 4 *"): "that is all four of a layer: asked is one all-to-all's",
    (" * element_bytes", ""): "those are elements, not bytes",
}, praise="every row of every expert is sent, full or empty")  # fmt: skip


def _balanced(function, seed):
    """The loss and its gradient, of routers that choose evenly and unevenly."""
    seen, due = {}, "balance_loss must return a tensor without dimensions"
    for k in (1, 2):
        tokens, experts = 24 + (seed + k) % 7, 3 + (seed + k) % 4
        scores = randn_of_rank(seed + k, tokens, experts) + torch.linspace(0, 2, experts)
        probabilities = scores.requires_grad_().softmax(-1)
        loss = returned(function(probabilities, probabilities.topk(k).indices), torch.Tensor, due)
        with helped({"does not require grad": "it comes from the probabilities: choices have none"}):
            loss.backward()
        seen |= {f"the loss, k = {k}": loss, f"the gradient of the scores, k = {k}": scores.grad}
    return seen


FIRST, TERMS = "F.one_hot(expert[:, 0], experts)", "(chosen * probabilities.mean(0))"
balance_loss = build(solutions.balance_loss_solution, _balanced, worlds=(1, 2), mistakes={
    ("experts * (", "("): "multiply by the number of experts, so that an even load gives 1 for any E",
    (f"experts * {TERMS}.sum()", f"{TERMS}.mean()"):
        "multiply by the number of experts; a mean over them divides by it",
    (FIRST, "F.one_hot(expert, experts).sum(1)"):
        "count first choices alone, as GShard and DeepSpeed's top-2 do",
    (FIRST, "F.one_hot(expert.flatten(), experts)"): "count first choices alone, not all k of a token",
    (TERMS, "(probabilities.mean(0) ** 2)"):
        "one of the two is the share of tokens that chose the expert, which has no gradient",
    (TERMS, "(probabilities.mean(0) / experts)"): "without the counts, the sum is the same for every router",
    ("probabilities.mean(0)", "probabilities.sum(0)"):
        "the second is the mean probability, over tokens, not the sum",
}, praise="the counts say where the load is, and the probabilities carry the gradient")  # fmt: skip


equal_tokens = formula(solutions.equal_tokens_solution, cases=[
    (96_000_000, 3, 1000, 1.0), (256 * 44_040_192, 8, 7168, 1.25),
], mistakes={
    ("4 * k", "2 * k"): "tokens go there and back, forward and backward: four messages",
    ("3 * parameters", "2 * parameters"):
        "ZeRO-3 gathers weights forward and backward, and reduces their gradients: three messages",
    ("4 * k *", "4 *"): "a token goes to k experts",
    ("k * factor *", "k *"): "empty rows are sent as well: the factor counts",
    ("3 * parameters / (4 * k * factor * width)", "4 * k * factor * width / (3 * parameters)"):
        "that is the other way round: the tokens at which both are equal",
}, praise="weights are sent however many tokens there are, and tokens however many experts")  # fmt: skip
