"""Answers of lesson 14: which expert gets which token, the way to the experts and back, balance and messages;
and the mistakes that people make."""

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.in_ranks import helped
from helpers.course.exercises.operators import identity, operator, rank_count, summed
from helpers.tools import theory

__all__ = ["Exchange", "balance_loss", "guess", "message_bytes", "equal_tokens", "route", "through_experts"]


def _rank():
    import deepspeed.comm as comm

    return comm.get_rank()


def _own(seed, *shape):
    """Random numbers that differ from rank to rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * (seed % 10**6) + _rank()))


# --- routing

CASES = ((1, 2), (1, 40), (2, 3), (2, 40), (3, 4))  # choices of a token, rows of an expert


def _pair(found):
    if (
        not isinstance(found, (tuple, list))
        or len(found) != 2
        or not all(isinstance(one, torch.Tensor) for one in found)
    ):
        raise TypeError(f"route must return two tensors, expert and slot, not {found!r}")
    if any(one.is_floating_point() for one in found):
        raise TypeError(
            "route must return whole numbers (int64), not floats: the numbers of experts and of rows"
        )
    return [one.long() for one in found]


def _routed(function, seed):
    """The routes of random tokens, some of whose experts are asked for far more than they can take."""
    found = {}
    for place, (k, capacity) in enumerate(CASES):
        tokens, experts = 13 + (seed + place) % 5, 4 + (seed + place) % 3
        liked = torch.linspace(0, 3, experts)[torch.randperm(experts)]  # the router prefers some experts
        probabilities = (_own(seed + place, tokens, experts) + liked).softmax(-1)
        given = probabilities.clone()
        expert, slot = _pair(function(probabilities, k, capacity))
        case = f"k = {k}, capacity {capacity}"
        found[f"expert, {case}"], found[f"slot, {case}"] = expert, slot
        found[f"probabilities are as they were, {case}"] = bool(given.equal(probabilities))
    return found


def _route(
    order="choices first", start=0, room=0, dropped=-1, each=False, largest=True, by="order", counts="all"
):
    """A route that may be mistaken; without a mistake it is right."""

    def route(probabilities, k, capacity):
        tokens, experts = probabilities.shape
        chosen = probabilities.topk(k, largest=largest)
        expert = chosen.indices
        wanted = expert.T.flatten() if order == "choices first" else expert.flatten()
        queue = torch.arange(len(wanted))
        if by == "probability":
            queue = (
                (chosen.values.T if order == "choices first" else chosen.values)
                .flatten()
                .argsort(descending=True)
            )
        asked = F.one_hot(wanted, experts)[queue]
        if each:  # every choice begins to count anew
            place = torch.cat([part.cumsum(0) for part in asked.split(tokens)])
        else:
            place = asked.cumsum(0)
        own = torch.empty_like(wanted)
        own[queue] = ((place - 1) * asked).sum(1)
        slot = (own.view(k, tokens).T if order == "choices first" else own.view(tokens, k)) + start
        gone = slot >= capacity + room
        if dropped == "expert too":
            return expert.masked_fill(gone, -1), slot.masked_fill(gone, -1)
        return expert, slot if dropped is None else slot.masked_fill(
            gone, dropped if dropped != "last" else capacity - 1
        )

    return route


def _read_in_rows(probabilities, k, capacity):
    expert, slot = _route()(probabilities, k, capacity)
    return expert, slot.T.reshape(expert.shape)


def _transposed(probabilities, k, capacity):
    expert, slot = _route()(probabilities, k, capacity)
    return expert.T, slot.T


route = Build(
    "route",
    _routed,
    worlds=(1, 2),
    mistakes={
        "the first choices of all tokens come before any second choice": _route(order="tokens first"),
        "rows are counted from 0": _route(start=1),
        "an expert takes `capacity` rows, those from 0 to capacity - 1": _route(room=1),
        "one row of every expert stays empty: the last is capacity - 1": _route(room=-1),
        "what finds no row gets the slot -1": _route(dropped=None),
        "a row belongs to one choice: what finds none gets the slot -1, not a row that is taken": _route(
            dropped="last"
        ),
        "row 0 belongs to whoever came first: what finds no row gets the slot -1": _route(dropped=0),
        "leave the number of the expert where a choice is dropped; only its slot is -1": _route(
            dropped="expert too"
        ),
        "second choices go on counting where the first ones ended, else two tokens share a row": _route(
            each=True
        ),
        "the router's favourites are the largest probabilities": _route(largest=False),
        "within a choice the rows go to tokens in their order, not by their probability": _route(
            by="probability"
        ),
        "the slots are in the order in which choices were served, all first ones first: "
        "`.view(k, tokens).T`": _read_in_rows,
        "both are of shape (tokens, k): a row for each token": _transposed,
    },
    praise="whoever comes first gets a row, first choices before second ones, and the rest is dropped",
)


# --- to the experts and back


def _sent(rows):
    import deepspeed.comm as comm

    rows = rows.contiguous()
    received = torch.empty_like(rows)
    comm.all_to_all_single(received, rows)
    return received


SLIPS = {
    "must be contiguous": "rows, and a gradient, may be a transposed view: send "
    "`rows.contiguous()`, and receive in a "
    "contiguous tensor"
}


def _exchanged(function, seed):
    """The operator in the middle of other work; what comes in, forward and backward, need not be
    contiguous."""
    shape = (3 + seed % 2, 2 * rank_count(), 4)
    given = _own(seed, *shape).requires_grad_()
    inside = (given * 1.0).transpose(0, 1)
    before = inside.detach().clone()
    with helped(SLIPS):
        result = function.apply(inside)
    if not isinstance(result, torch.Tensor):
        raise TypeError(
            f"forward must return the tensor that was received, not {result!r} (all_to_all_single "
            "fills the first one, and returns none)"
        )
    with helped(SLIPS):
        (result.transpose(0, 1) * _own(seed + 1, *shape)).sum().backward()
    if given.grad is None:
        raise TypeError("backward must return the gradient of rows, not None")
    as_it_was = bool(inside.detach().equal(before))
    return {
        "what was received": result,
        "the gradient of rows": given.grad,
        "what was given to forward is as it was": as_it_was,
    }


Exchange = Build(
    "Exchange",
    _exchanged,
    mistakes={
        "what belongs to other ranks must be sent to them: all_to_all_single in `forward`": operator(
            identity, identity
        ),
        "backward, the gradient of what was sent lies on the rank that "
        "received it: it must come back": operator(_sent, identity),
        "forward nothing was sent": operator(identity, _sent),
        "each gradient has one place to go back to: nothing is summed": operator(_sent, summed),
        "a row that goes to one rank has one gradient; there is nothing to average": operator(
            _sent, lambda rows: _sent(rows) / rank_count()
        ),
        "that sums the ranks' rows: each part goes to one rank": operator(summed, summed),
        "forward a row is sent, not a part of it": operator(lambda rows: _sent(rows) / rank_count(), _sent),
    },
    praise="forward and backward are the same exchange: what was sent to a rank comes back from it",
)

_exchange = operator(_sent, _sent)


def _experts(seed, own, width):
    """This rank's experts, each with weights of its own."""
    made = []
    for number in range(own):
        torch.manual_seed(7 * (seed % 10**6) + own * _rank() + number)
        made.append(nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, width)))
    return nn.ModuleList(made)


def _through(function, seed):
    own, capacity, width = 2 + seed % 2, 3 + seed % 3, 4 + seed % 2
    experts, rows = (
        _experts(seed, own, width),
        _own(seed, own * rank_count(), capacity, width).requires_grad_(),
    )
    answers = function(rows, experts)
    if not isinstance(answers, torch.Tensor):
        raise TypeError(f"through_experts must return a tensor of the shape of rows, not {answers!r}")
    found = {"the answers": answers}
    if answers.shape != rows.shape:
        return found
    if not answers.requires_grad:
        raise TypeError(
            "no gradient comes back from the answers: send with `Exchange.apply`, which autograd "
            "knows, both ways"
        )
    (answers * _own(seed + 1, *rows.shape)).sum().backward()
    found["the gradient of rows"] = torch.zeros_like(rows) if rows.grad is None else rows.grad
    for number, one in enumerate(experts):
        for name, parameter in one.named_parameters():
            found[f"the gradient of expert {number}'s {name}"] = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
    return found


def _by_rank(rows, experts):
    """What arrived, of shape (ranks, own experts, C, h)."""
    return rows.view(rank_count(), len(experts), *rows.shape[1:])


def _answered(arrived, experts):
    return torch.stack([one(arrived[:, number]) for number, one in enumerate(experts)], 1).flatten(0, 1)


def _right(rows, experts):
    return _exchange.apply(_answered(_by_rank(_exchange.apply(rows), experts), experts))


def _by_expert_first(rows, experts):
    arrived = _exchange.apply(rows)
    parts = arrived.chunk(len(experts))
    return _exchange.apply(torch.cat([one(part) for one, part in zip(experts, parts)]))


def _in_another_order(rows, experts):
    arrived = _by_rank(_exchange.apply(rows), experts)
    return _exchange.apply(torch.cat([one(arrived[:, number]) for number, one in enumerate(experts)]))


def _in_turn(rows, experts):
    arrived = _exchange.apply(rows)
    return _exchange.apply(
        torch.stack([experts[place % len(experts)](part) for place, part in enumerate(arrived.flip(0))])
    )


def _without_gradient(rows, experts):
    return _sent(_answered(_by_rank(_sent(rows.detach()), experts), experts).detach()) + 0 * rows


through_experts = Build(
    "through_experts",
    _through,
    mistakes={
        "what arrives is ordered by the rank it comes from, and within that by expert": _by_expert_first,
        "the answers must go back in the order of the rows: by rank, "
        "and within that by expert": _in_another_order,
        "what arrives is in the order of the ranks, not in the opposite one": _in_turn,
        "the answers must go back to the ranks that asked: exchange twice": lambda rows, experts: _answered(
            _by_rank(_exchange.apply(rows), experts), experts
        ),
        "rows must be sent to the ranks of their experts before an expert sees them": lambda rows, experts: (
            _exchange.apply(_answered(_by_rank(rows, experts), experts))
        ),
        "nothing was sent: most of these rows are for the experts of other ranks": lambda rows, experts: (
            _answered(_by_rank(rows, experts), experts)
        ),
        "each expert has rows of its own: all went to the first": lambda rows, experts: _exchange.apply(
            experts[0](_exchange.apply(rows))
        ),
        "no gradient comes back: send with `Exchange.apply`, which autograd knows": _without_gradient,
        "every rank gets its answers once: divide nothing": lambda rows, experts: (
            _right(rows, experts) / rank_count()
        ),
    },
    praise="two exchanges: rows to the ranks of their experts, and the answers back",
)


# --- formulas


def _bytes(tokens, experts, k, factor, width, element_bytes):
    return theory.all_to_all_bytes(
        experts, theory.expert_capacity(tokens, experts, k, factor), width, element_bytes
    )


message_bytes = Exercise(
    _bytes,
    (
        {"tokens": 128, "experts": 8, "k": 1, "factor": 1.0, "width": 64, "element_bytes": 4},
        {"tokens": 4096, "experts": 8, "k": 2, "factor": 1.25, "width": 4096, "element_bytes": 2},
        {"tokens": 100, "experts": 8, "k": 2, "factor": 1.0, "width": 16, "element_bytes": 2},
        {"tokens": 100, "experts": 8, "k": 1, "factor": 1.5, "width": 16, "element_bytes": 2},
    ),
    {
        "the capacity counts "
        "choices, of which a token has k": lambda tokens, experts, k, factor, width, element_bytes: _bytes(
            tokens, experts, 1, factor, width, element_bytes
        ),
        "an expert takes whole "
        "tokens: round its capacity up": lambda tokens, experts, k, factor, width, element_bytes: (
            tokens * factor * k * width * element_bytes
        ),
        "an expert takes whole "
        "tokens: round up, not down": lambda tokens, experts, k, factor, width, element_bytes: (
            experts * int(tokens * factor * k / experts) * width * element_bytes
        ),
        "that is one expert's part: the "
        "message has rows for all of them": lambda tokens, experts, k, factor, width, element_bytes: (
            theory.expert_capacity(tokens, experts, k, factor) * width * element_bytes
        ),
        "empty rows are sent too, and the "
        "factor says how many there are": lambda tokens, experts, k, factor, width, element_bytes: _bytes(
            tokens, experts, k, 1.0, width, element_bytes
        ),
        "round up once, the capacity: a token's k "
        "choices go to different experts": lambda tokens, experts, k, factor, width, element_bytes: (
            k * _bytes(tokens, experts, 1, factor, width, element_bytes)
        ),
        "that is all four of a layer: asked is one "
        "all-to-all's": lambda tokens, experts, k, factor, width, element_bytes: (
            4 * _bytes(tokens, experts, k, factor, width, element_bytes)
        ),
        "those are elements, not bytes": lambda tokens, experts, k, factor, width, element_bytes: _bytes(
            tokens, experts, k, factor, width, 1
        ),
    },
    praise="full or empty, every row of every expert is sent",
)


# --- balance


def _balanced(function, seed):
    """The loss and its gradient, of routers that choose evenly and unevenly."""
    found = {}
    for place, k in enumerate((1, 2)):
        tokens, experts = 24 + (seed + place) % 7, 3 + (seed + place) % 4
        scores = (_own(seed + place, tokens, experts) + torch.linspace(0, 2, experts)).requires_grad_()
        probabilities = scores.softmax(-1)
        loss = function(probabilities, probabilities.topk(k).indices)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise TypeError(f"balance_loss must return a tensor without dimensions, not {loss!r}")
        if not loss.requires_grad:
            raise TypeError(
                "balance_loss must have a gradient: it comes from the probabilities, since the "
                "choices have none"
            )
        loss.backward()
        found |= {f"the loss, k = {k}": loss, f"the gradient of the scores, k = {k}": scores.grad}
    return found


def _balance(times="E", first=True, share="choices", squared=False, mean=True):
    def balance_loss(probabilities, expert):
        tokens, experts = probabilities.shape
        counted = F.one_hot(expert[:, 0] if first else expert, experts).float()
        chosen = counted.mean(0) if first else counted.sum(1).mean(0)
        likely = probabilities.mean(0) if mean else probabilities.sum(0)
        if share == "of all choices":
            chosen = chosen / expert.shape[1]
        if squared:
            chosen = likely
        if share == "chosen only":
            chosen = torch.ones(experts) / experts
        total = (chosen * likely).sum()
        return total * experts if times == "E" else total if times == "1" else total / experts

    return balance_loss


balance_loss = Build(
    "balance_loss",
    _balanced,
    worlds=(1, 2),
    mistakes={
        "multiply by the number of experts, so that an even load gives 1 for any E": _balance(times="1"),
        "multiply by the number of experts; a mean over them divides by it": _balance(times="mean"),
        "count first choices alone, as GShard and DeepSpeed's top-2 do": _balance(first=False),
        "count first choices alone, not all k of a token": _balance(first=False, share="of all choices"),
        "one of the two is the share of tokens that chose the expert, which has no gradient": _balance(
            squared=True
        ),
        "without the counts, the sum is the same for every router": _balance(share="chosen only"),
        "the second is the mean probability, over tokens, not the sum": _balance(mean=False),
    },
    praise="the counts say where the load is, and the probabilities carry the gradient",
)


# --- tokens or weights


def _tokens(parameters, k, width, factor):
    """Tokens of a rank at which four all-to-alls of tokens send as much as ZeRO-3 sends of the weights: three
    times each."""
    return 3 * parameters / (4 * k * factor * width)


equal_tokens = Exercise(
    _tokens,
    (
        {"parameters": 96_000_000, "k": 3, "width": 1000, "factor": 1.0},
        {"parameters": 256 * 44_040_192, "k": 8, "width": 7168, "factor": 1.25},
    ),
    {
        "tokens go there and back, forward "
        "and backward: four messages": lambda parameters, k, width, factor: (
            3 * parameters / (2 * k * factor * width)
        ),
        "ZeRO-3 gathers weights forward and backward, and reduces their "
        "gradients: three messages": lambda parameters, k, width, factor: (
            2 * parameters / (4 * k * factor * width)
        ),
        "a token goes to k experts": lambda parameters, k, width, factor: (
            3 * parameters / (4 * factor * width)
        ),
        "empty rows are sent as well: the factor counts": lambda parameters, k, width, factor: (
            3 * parameters / (4 * k * width)
        ),
        "that is the other way round: the "
        "tokens at which both are equal": lambda parameters, k, width, factor: (
            4 * k * factor * width / (3 * parameters)
        ),
    },
    praise="weights are sent whatever the number of tokens, and tokens whatever the number of experts",
)
