"""What the demo notebook of the helpers runs in ranks, and the faults and tests that it tries."""

import functools

import torch
from helpers import Ledger, models, theory
from tests.support import configuration as deepspeed_config

ELEMENTS = 48
SIZES = [one.numel() for one in models.GPT().parameters()]
GPU = theory.MachineConstants(
    matrix={"bf16": {1024: 400e12}},
    memory=3e12,
    launch=5e-6,
    latency=1e-5,
    bandwidth=3e11,
    asynchronous=True,
)
WAYS = {
    "stage 1": {"stage": 1, "overlap_comm": False},
    "stage 1, overlapped": {"stage": 1, "overlap_comm": True},
    "stage 3": {"stage": 3},
}
PLANS = {way: deepspeed_config(micro_batch=4) | {"zero_optimization": zero} for way, zero in WAYS.items()}


def configuration(optimizer):
    """DeepSpeed's ZeRO-1 on two ranks without clipping: SGD in fp32, AdamW in bf16."""
    if optimizer == "AdamW":
        return deepspeed_config(1, micro_batch=2, accumulation=2, extra={"gradient_clipping": 0.0})
    sgd = {"type": "SGD", "params": {"lr": 1e-3}}
    extra = {"optimizer": sgd, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0}
    return deepspeed_config(1, bf16=False, micro_batch=4, extra=extra)


CLIPPED = configuration("SGD") | {"gradient_clipping": 1.0}
TO_OWNER = deepspeed_config(1, micro_batch=2, accumulation=2, use_multi_rank_bucket_allreduce=False)


def sends_momentum():
    """{category: elements} of two all-gathers: of a weight's shard, and of Adam's momentum, which nobody
    needs."""
    import deepspeed
    import deepspeed.comm as comm
    from helpers import Carried

    deepspeed.init_distributed()
    with Ledger() as ledger:
        layer = torch.nn.Linear(ELEMENTS, 1, bias=False)
        adam = torch.optim.AdamW(layer.parameters())
        ledger.watch(layer, adam)
        layer(torch.ones(1, ELEMENTS)).sum().backward()
        adam.step()
        with Carried(ledger) as carried:
            part = slice(comm.get_rank() * ELEMENTS // 2, (comm.get_rank() + 1) * ELEMENTS // 2)
            for whole in (layer.weight.detach(), adam.state[layer.weight]["exp_avg"]):
                flat = whole.flatten()
                comm.all_gather_into_tensor(flat, flat[part].clone())
    return dict(carried.elements)


def reduce(shift=0):
    """Rank r made r + 1 everywhere: the part of the mean that it gets, of the rank `shift` further."""
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    ranks, made = comm.get_world_size(), torch.full((ELEMENTS,), comm.get_rank() + 1.0)
    mine = torch.empty(ELEMENTS // ranks)
    comm.reduce_scatter_tensor(mine, made.roll(-shift * len(mine)))
    return (made.tolist(), (mine / ranks).tolist())


def reduced(reports, shift=0):
    """What each rank made, and what it got, at its place."""
    ranks, got = len(reports), []
    for rank, (_, mine) in enumerate(reports):
        at = (rank + shift) % ranks * len(mine)
        got.append([None] * at + mine + [None] * (ELEMENTS - at - len(mine)))
    return [made for made, _ in reports], got


# --- faults: of a function that averages a gradient over the ranks


def mean(gradient):
    import deepspeed.comm as comm

    comm.all_reduce(gradient)
    return gradient / comm.get_world_size()


def undivided(gradient):
    import deepspeed.comm as comm

    comm.all_reduce(gradient)
    return gradient


def alone(gradient):
    return gradient


def flipped(gradient):
    return -mean(gradient)


def refuses(gradient):
    raise RuntimeError("no gradient")


FAULTS = {"no division": undivided, "no all-reduce": alone, "wrong sign": flipped, "an error": refuses}


# --- tests: what each looks at after four steps of a small model


@functools.cache
def trained(average, optimizer, limit=None):
    """{"loss", "norm" of the first step before clipping, "update" of all weights, "apart": its distance from
    rank 0's}."""
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    torch.manual_seed(0)
    model, rows = torch.nn.Linear(16, 4), torch.Generator().manual_seed(comm.get_rank())
    weight, norms = model.weight, []
    start, steps = weight.detach().clone(), optimizer([weight], lr=0.01)
    for _ in range(4):
        x = torch.randn(8, 16, generator=rows)
        loss = (x @ weight.T - 1).square().mean()
        loss.backward()
        weight.grad = average(weight.grad)
        norms.append(weight.grad.norm().item())
        if limit:
            weight.grad *= min(1.0, limit / norms[-1])
        steps.step()
        steps.zero_grad()
    update = weight.detach() - start
    others = update.clone()
    comm.broadcast(others, 0)
    return {"loss": loss.item(), "norm": norms[0], "update": update, "apart": (update - others).norm().item()}


def looks_at(key, optimizer, limit=None):
    return lambda average: trained(average, optimizer, limit)[key]


TESTS = {
    "loss, AdamW": looks_at("loss", torch.optim.AdamW),
    "weights, AdamW": looks_at("update", torch.optim.AdamW),
    "ranks agree": looks_at("apart", torch.optim.SGD),
    "norm": looks_at("norm", torch.optim.SGD),
    "weights, SGD": looks_at("update", torch.optim.SGD),
    "weights, SGD, clipped": looks_at("update", torch.optim.SGD, 0.1),
}
