"""Answers of lesson 05: the two operators, the two layers and the loss of tensor parallelism, and the
mistakes that people make there."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.operators import identity, operator, rank_count, summed
from helpers.tools import theory

__all__ = [
    "CopyToRanks",
    "GatheredLinear",
    "SumOverRanks",
    "balance_bandwidth",
    "column_parallel",
    "gather",
    "guess",
    "llama_bytes",
    "row_parallel",
    "scatter",
    "vocabulary_parallel_loss",
]


def _own(seed, *shape):
    """Random numbers that differ from rank to rank."""
    import deepspeed.comm as comm

    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(1000 * (seed % 10**6) + comm.get_rank())
    )


def _in_place(tensor):
    import deepspeed.comm as comm

    comm.all_reduce(tensor)
    return tensor


def _mean(tensor):
    import deepspeed.comm as comm

    return summed(tensor) / comm.get_world_size()


# --- f and g


IN_PLACE = " (comm.all_reduce works in place and returns nothing: return the tensor that you gave it)"


def _applied(function, given, weights):
    """The operator in the middle of other work, with a second use of the gradient that comes back to it."""
    beside = torch.ones_like(given, requires_grad=True)
    x = given.clone().requires_grad_()
    inside, shared = x * 1.0, beside * 1.0
    result = function.apply(inside)
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"forward must return a tensor, not {result!r}{IN_PLACE}")
    ((result + shared) * weights).sum().backward()
    if x.grad is None:
        raise TypeError(f"backward must return the gradient of x, not None{IN_PLACE}")
    return {
        "the result": result,
        "what was given to forward is as it was": bool(inside.detach().equal(given)),
        "the gradient of what was given": x.grad,
        "the gradient that came to backward is as it was": bool(beside.grad.equal(weights)),
    }


def _copied(function, seed):
    shape = (2 + seed % 2, 3)
    return _applied(
        function, torch.randn(shape), _own(seed, *shape)
    )  # the same on all ranks; each goes on with a part of its own


def _added(function, seed):
    shape = (2 + seed % 2, 3)
    return _applied(
        function, _own(seed, *shape), torch.randn(shape)
    )  # each has a part of its own; all go on with the same


CopyToRanks = Build(
    "CopyToRanks",
    _copied,
    mistakes={
        "each rank's layer contributes a part of this gradient: sum it "
        "over the ranks in `backward`": operator(identity, identity),
        "in `forward` every rank has all of x already, and nothing is summed": operator(summed, summed),
        "that is g; f passes x on as it is, and sums the gradient": operator(summed, identity),
        "the parts of a gradient add up; a mean of them is too small by the number of ranks": operator(
            identity, _mean
        ),
        "the gradient that comes in may be used elsewhere too, so it must "
        "not change: sum a copy of it": operator(identity, _in_place),
    },
    praise="what is used by all ranks gets the sum of all their gradients",
)

SumOverRanks = Build(
    "SumOverRanks",
    _added,
    mistakes={
        "the ranks' parts must be summed in `forward`": operator(identity, identity),
        "every rank has the whole gradient already: summing it in `backward` "
        "counts it once for each rank": operator(summed, summed),
        "that is f; g sums forward, and passes the gradient on as it is": operator(identity, summed),
        "the parts add up to the result; it is not their mean": operator(_mean, identity),
        "what came in was changed in place, and autograd may need it: sum a copy": operator(
            _in_place, identity
        ),
    },
    praise="all ranks go on with the same sum, so the gradient of the sum is each part's gradient",
)


# --- the two layers


def _layer(function, x, weight, bias, weights):
    """A layer's result and its gradients."""
    x, weight, bias = (tensor.clone().requires_grad_() for tensor in (x, weight, bias))
    result = function(x, weight, bias)
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"a layer must return a tensor, not {result!r}")
    found = {"the result": result}
    if result.shape != weights.shape:
        return found
    (result * weights).sum().backward()
    return found | {
        "the gradient of x": x.grad,
        "the gradient of weight": weight.grad,
        "the gradient of bias": bias.grad,
    }


def _sizes(seed):
    """Tokens, inputs and outputs, all different."""
    return 3 + seed % 2, 5 + seed % 3, 8 + seed % 4


def _column(function, seed):
    tokens, inputs, outputs = _sizes(seed)
    found = _layer(
        function,
        torch.randn(2, tokens, inputs),
        _own(seed, outputs, inputs),
        _own(seed + 1, outputs),
        _own(seed + 2, 2, tokens, outputs),
    )
    try:
        alone = function(torch.randn(2, tokens, inputs), _own(seed + 3, outputs, inputs), None)
    except TypeError as error:
        raise TypeError(f"{error}: bias may be None, which F.linear takes") from error
    return found | {"the result without a bias": alone}


def _row(function, seed):
    tokens, inputs, outputs = _sizes(seed)
    return _layer(
        function,
        _own(seed, 2, tokens, inputs),
        _own(seed + 1, outputs, inputs),
        torch.randn(outputs),
        torch.randn(2, tokens, outputs),
    )


_f, _g, _both = operator(identity, summed), operator(summed, identity), operator(summed, summed)

column_parallel = Build(
    "column_parallel",
    _column,
    mistakes={
        "x is used by all ranks, so its gradient must be summed: send it "
        "through f before the product": F.linear,
        "the ranks' results are different channels, and are not summed": lambda x, weight, bias: _g.apply(
            F.linear(_f.apply(x), weight, bias)
        ),
        "every rank has all of x: g would sum equal copies": lambda x, weight, bias: F.linear(
            _g.apply(x), weight, bias
        ),
        "f belongs to what goes in: behind the product it sums "
        "gradients of different channels": lambda x, weight, bias: _f.apply(F.linear(x, weight, bias)),
    },
    praise="nothing is sent forward; backward the gradient of x, once",
)

row_parallel = Build(
    "row_parallel",
    _row,
    mistakes={
        "the bias was summed too: add it once, after the sum": lambda x, weight, bias: _g.apply(
            F.linear(x, weight, bias)
        ),
        "that is this rank's part: the products of all ranks must be summed": F.linear,
        "the bias is missing": lambda x, weight, bias: _g.apply(F.linear(x, weight)),
        "the gradient comes back t times: use g, whose backward pass sums nothing": lambda x, weight, bias: (
            _both.apply(F.linear(x, weight)) + bias
        ),
        "every rank's part of the bias came back through the sum: add "
        "the bias once, after the sum": lambda x, weight, bias: _g.apply(
            F.linear(x, weight, bias / rank_count())
        ),
        "g belongs behind the product: before it, different channels are added up": lambda x, weight, bias: (
            F.linear(_g.apply(x), weight) + bias
        ),
        "each rank has channels of its own: f would mix up the "
        "gradients of different channels": lambda x, weight, bias: (
            _g.apply(F.linear(_f.apply(x), weight)) + bias
        ),
    },
    praise="the sum is sent once, forward, and the bias, which all ranks hold, is added after it",
)


# --- tokens in parts


def gather(own_tokens: torch.Tensor) -> torch.Tensor:
    """This rank's tokens, of shape (B, T / t, C), to those of all ranks in order, of shape (B, T, C)."""
    import deepspeed.comm as comm

    batch, tokens, channels = own_tokens.shape
    received = own_tokens.new_empty(comm.get_world_size() * batch, tokens, channels)
    comm.all_gather_into_tensor(received, own_tokens.contiguous())
    return torch.cat(received.split(batch), 1)


def scatter(part: torch.Tensor) -> torch.Tensor:
    """A part of a sum on each rank, of shape (B, T, C), to this rank's tokens of the sum, of shape (B, T / t,
    C)."""
    import deepspeed.comm as comm

    by_rank = torch.cat(part.chunk(comm.get_world_size(), 1))
    own_tokens = part.new_empty(by_rank.shape[0] // comm.get_world_size(), *by_rank.shape[1:])
    comm.reduce_scatter_tensor(own_tokens, by_rank)
    return own_tokens


def _own_tokens(x):
    import deepspeed.comm as comm

    return x.chunk(comm.get_world_size(), 1)[comm.get_rank()].contiguous()


def _of_own_tokens(function, seed):
    tokens, inputs, outputs = _sizes(seed)
    shapes = ((2, tokens, inputs), (outputs, inputs), (outputs,))
    given = [_own(seed + place, *shape).requires_grad_() for place, shape in enumerate(shapes)]
    result = function.apply(*given)
    kept = sum(tensor.numel() for tensor in result.grad_fn.saved_tensors)
    (result * _own(seed + 3, 2, tokens * rank_count(), outputs)).sum().backward()
    names = ("the gradient of own_tokens", "the gradient of weight", "the gradient of bias")
    return (
        {"elements kept for the backward pass": kept}
        | {name: one.grad for name, one in zip(names, given)}
        | {"the result": result}
    )


def _gathered_linear(of_tokens=scatter, own_only=False, of_weight=identity, keep_all=False, of_bias=identity):
    """A layer that may be mistaken in one of the gradients, or in what it keeps."""

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(context, own_tokens, weight, bias):
            x = gather(own_tokens)
            context.save_for_backward(x if keep_all else own_tokens, weight)
            return F.linear(x, weight, bias)

        @staticmethod
        def backward(context, gradient):
            kept, weight = context.saved_tensors
            x = kept if keep_all or own_only else gather(kept)
            flat = (_own_tokens(gradient) if own_only else gradient).flatten(0, 1)
            return (
                of_tokens(gradient @ weight),
                of_weight(flat.T @ x.flatten(0, 1)),
                of_bias(gradient.flatten(0, 1).sum(0)),
            )

    return Layer


GatheredLinear = Build(
    "GatheredLinear",
    _of_own_tokens,
    mistakes={
        "keep this rank's own tokens, not those of all ranks: "
        "gather them again in `backward`": _gathered_linear(keep_all=True),
        "every rank contributes to a token's gradient: `scatter` sums, and "
        "leaves each rank its own tokens": _gathered_linear(of_tokens=_own_tokens),
        "this rank's weight multiplies all tokens: gather the input again for its gradient": _gathered_linear(
            own_only=True
        ),
        "each rank has a weight of its own, and sees all tokens: its gradient is complete": _gathered_linear(
            of_weight=summed
        ),
        "each rank has a bias of its own, and sees all tokens: its gradient is complete": _gathered_linear(
            of_bias=summed
        ),
        "the ranks' contributions are summed, not averaged": _gathered_linear(
            of_tokens=lambda part: scatter(part) / rank_count()
        ),
    },
    praise="forward one all-gather; backward one more, and a reduce-scatter; kept are own tokens only",
)


# --- a vocabulary in parts


class _LargestMessage:
    """Elements of the largest tensor that this rank reduces or gathers while it is entered."""

    NAMES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")

    def __enter__(self):
        import torch.distributed as dist

        self.elements, self.real = 0, {name: getattr(dist, name) for name in self.NAMES}
        for name, real in self.real.items():
            setattr(dist, name, self._noting(real))
        return self

    def _noting(self, real):
        def noting(*arguments, **options):
            tensors = [one for one in (*arguments, *options.values()) if isinstance(one, torch.Tensor)]
            self.elements = max([self.elements, *(tensor.numel() for tensor in tensors)])
            return real(*arguments, **options)

        return noting

    def __exit__(self, *problem):
        import torch.distributed as dist

        for name, real in self.real.items():
            setattr(dist, name, real)


def _parts(seed):
    """This rank's part of the vocabulary, as (first, entries); the ranks' parts are of different sizes."""
    import deepspeed.comm as comm

    entries = [3 + (rank + seed) % 3 for rank in range(comm.get_world_size())]
    return sum(entries[: comm.get_rank()]), entries[comm.get_rank()], sum(entries)


def _loss(function, seed):
    first, entries, vocabulary = _parts(seed)
    targets = torch.randint(vocabulary, (2, 4 + seed % 3))
    found = {}
    for size, scale in (("", 1.0), (", where logits are large", 300.0)):
        logits = (scale * _own(seed, *targets.shape, entries)).requires_grad_()
        with _LargestMessage() as sent:
            loss = function(logits, targets, first)
            if not isinstance(loss, torch.Tensor) or loss.dim():
                raise TypeError(
                    f"vocabulary_parallel_loss must return a tensor without dimensions, not {loss!r}"
                )
            loss.backward()
        found[f"the loss{size}"], found[f"the gradient of logits{size}"] = loss, logits.grad
        found["no message has more elements than there are tokens"] = sent.elements <= targets.numel()
    return found


def _vocabulary(largest="of all", right="masked", reduce="mean", add=_g, detached=True, back=True):
    """A mistaken loss; without a mistake it is right."""

    def vocabulary_parallel_loss(logits, targets, first):
        import deepspeed.comm as comm

        top = (logits.detach() if detached else logits).amax(-1)
        if largest in ("of all", "summed"):
            comm.all_reduce(top, op=comm.ReduceOp.MAX if largest == "of all" else comm.ReduceOp.SUM)
        top = torch.zeros_like(top) if largest == "none" else top
        total = add.apply((logits - top.unsqueeze(-1)).exp().sum(-1))
        columns = targets - (first if right != "global ids" else 0)
        mine = (columns >= 0) & (columns < logits.shape[-1])
        own = logits.gather(-1, columns.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        own = own if right == "unmasked" else own * mine
        losses = total.log() + (top if back else 0) - (own if right == "own" else add.apply(own))
        return losses.mean() if reduce == "mean" else losses.sum()

    return vocabulary_parallel_loss


def _gathered(logits, targets, first):
    """The logits of all ranks on every rank."""
    import deepspeed.comm as comm

    vocabulary = torch.tensor(first + logits.shape[-1])
    comm.all_reduce(vocabulary, op=comm.ReduceOp.MAX)
    every = logits.new_zeros(*logits.shape[:-1], int(vocabulary))
    every[..., first : first + logits.shape[-1]] = logits.detach()
    comm.all_reduce(every)
    every = torch.cat([every[..., :first], logits, every[..., first + logits.shape[-1] :]], -1)
    return F.cross_entropy(every.flatten(0, 1), targets.flatten())


vocabulary_parallel_loss = Build(
    "vocabulary_parallel_loss",
    _loss,
    mistakes={
        "exp() of a large logit is infinite: subtract the largest logit of all ranks first": _vocabulary(
            largest="none"
        ),
        "each rank subtracted a maximum of its own, so its exponentials do not fit the others'": _vocabulary(
            largest="own"
        ),
        "that subtracts the sum of the ranks' maxima: use `op=comm.ReduceOp.MAX`": _vocabulary(
            largest="summed"
        ),
        "a rank that does not have the target's logit must add zero to the sum": _vocabulary(
            right="unmasked"
        ),
        "a rank's columns are numbered from 0: take `first` off the target": _vocabulary(right="global ids"),
        "only one rank has the target's logit: sum it over the ranks": _vocabulary(right="own"),
        "that is the sum over the tokens; the loss is their mean": _vocabulary(reduce="sum"),
        "the largest logit was subtracted, and must be added back to the logarithm": _vocabulary(back=False),
        "the largest logit needs no gradient: take it from `logits.detach()`": _vocabulary(detached=False),
        "the gradients come back t times: sum with g": _vocabulary(add=_both),
        "that sends all logits; three numbers for each token are enough": _gathered,
    },
    praise="three numbers for each token cross between the ranks, whatever the vocabulary",
)


# --- formulas


def _balance(width, rate, ranks):
    return 2 * (ranks - 1) * rate / (9 * width)


balance_bandwidth = Exercise(
    reference=_balance,
    cases=(
        {"width": 4096, "rate": 400e12, "ranks": 4},
        {"width": 12288, "rate": 989e12, "ranks": 2},
        {"width": 8192, "rate": 500e12, "ranks": 8},
    ),
    mistakes={
        "an all-reduce sends 2 (t - 1) / t of its bytes": lambda width, rate, ranks: (
            ranks * rate / (9 * width)
        ),
        "the ranks share a block's work, so it takes less time": lambda width, rate, ranks: (
            _balance(width, rate, ranks) / ranks
        ),
        "there are two all-reduces forward and two "
        "backward, of 2 bytes per element": lambda width, rate, ranks: _balance(width, rate, ranks) / 2,
        "that counts the forward pass of the work; backward it is twice as much": lambda width, rate, ranks: (
            3 * _balance(width, rate, ranks)
        ),
        "the other way round": lambda width, rate, ranks: 1 / _balance(width, rate, ranks),
    },
    praise="tokens cancel: work and messages both grow with them, so only the width helps",
)

llama_bytes = Exercise(
    reference=lambda batch, sequence, width, layers, element, ranks: theory.tensor_parallel_wire_bytes(
        batch, sequence, width, layers, element, ranks, all_reduces=7
    ),
    cases=(
        {"batch": 4, "sequence": 32, "width": 64, "layers": 4, "element": 4, "ranks": 4},
        {"batch": 1, "sequence": 4096, "width": 4096, "layers": 32, "element": 2, "ranks": 8},
    ),
    mistakes={
        "that is Megatron-LM's four: q, k, v, gate and up each "
        "sum a gradient of their own": lambda batch, sequence, width, layers, element, ranks: (
            theory.tensor_parallel_wire_bytes(batch, sequence, width, layers, element, ranks)
        ),
        "that is the "
        "backward pass; two come forward": lambda batch, sequence, width, layers, element, ranks: (
            theory.tensor_parallel_wire_bytes(batch, sequence, width, layers, element, ranks, all_reduces=5)
        ),
        "that is what is logged; an all-reduce "
        "sends 2 (t - 1) / t of it": lambda batch, sequence, width, layers, element, ranks: (
            7 * layers * element * batch * sequence * width
        ),
    },
    praise="every column-parallel matrix of its own sends back a gradient of its own; a fused one sends "
    "the sum, once",
)
