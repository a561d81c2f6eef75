"""Every collective in every spelling: each message is counted once, with the same name, bytes and ranks, and
over gloo as many bytes leave the rank as the formulas say."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed import (
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all_single,
    barrier,
    broadcast,
    broadcast_object_list,
    gather,
    gather_object,
    irecv,
    isend,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    scatter_object_list,
    send,
)
from helpers import launch, theory
from helpers.tools.measure.clock import Clock
from helpers.tools.measure.timelines import SENT
from helpers.tools.measure.traffic import Traffic

pytestmark = pytest.mark.ranks

RANKS, ELEMENTS = 2, 1 << 12
PART, WHOLE = 4 * ELEMENTS, 4 * ELEMENTS * RANKS


class Tensors:
    """Arguments of collectives on ELEMENTS fp32 numbers per rank."""

    def __init__(self):
        self.rank = dist.get_rank()
        self.other = 1 - self.rank
        self.part, self.whole = torch.ones(ELEMENTS), torch.ones(ELEMENTS * RANKS)
        self.parts = [torch.ones(ELEMENTS) for _ in range(RANKS)]
        self.on_root = self.parts if self.rank == 0 else None
        self.objects, self.root_objects = [None] * RANKS, [None] * RANKS if self.rank == 0 else None


def comm():
    import deepspeed.comm

    return deepspeed.comm


def waited(request):
    if hasattr(request, "wait"):
        request.wait()


def in_turn(sending, receiving):
    """Rank 0 sends what rank 1 receives."""
    return waited(sending() if dist.get_rank() == 0 else receiving())


def backwards(function, *arguments):
    """A differentiable collective of torch.distributed.nn, its forward pass."""
    return function(*arguments).detach()


def coalesced(call, tensors, asynchronous):
    with dist._coalescing_manager(async_ops=asynchronous) as requests:
        for tensor in tensors:
            call(tensor)
    if asynchronous:
        requests.wait()


def functional(name, *arguments):
    import torch.distributed._functional_collectives as functions

    return functions.wait_tensor(getattr(functions, name)(*arguments))


def in_thread(call):
    """As autograd calls hooks for tensors of a GPU."""
    import threading

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def batched(t):
    operations = [dist.P2POp(dist.isend, t.part, t.other), dist.P2POp(dist.irecv, t.parts[0], t.other)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()


def ddp_backward(t):
    """Of a model with ELEMENTS parameters: its reducer, which is C++, sends one bucket."""
    t.model(torch.ones(1, ELEMENTS)).sum().backward()


SPELLINGS = {  # what is logged, {name: calls of t}
    (("all_reduce", PART),): {
        "attribute": lambda t: dist.all_reduce(t.part),
        "from-import": lambda t: all_reduce(t.part),
        "keywords": lambda t: all_reduce(tensor=t.part, op=dist.ReduceOp.SUM, group=dist.group.WORLD),
        "deepspeed.comm": lambda t: comm().all_reduce(t.part),
        "asynchronous": lambda t: all_reduce(t.part, async_op=True).wait(),
        "deepspeed, asynchronous": lambda t: comm().all_reduce(t.part, async_op=True).wait(),
        "inference": lambda t: comm().inference_all_reduce(t.part),
        "group's method": lambda t: dist.group.WORLD.allreduce([t.part]).wait(),
        "functional": lambda t: functional("all_reduce", t.part, "sum", dist.group.WORLD),
        "differentiable": lambda t: backwards(dist.nn.functional.all_reduce, t.part),
        "inference mode": lambda t: torch.inference_mode()(all_reduce)(t.part),
        "another thread": lambda t: in_thread(lambda: all_reduce(t.part)),
        "the module": lambda t: dist.distributed_c10d.all_reduce(t.part),
    },
    (("all_reduce_coalesced", 2 * PART),): {
        "attribute": lambda t: dist.all_reduce_coalesced(t.parts),
        "asynchronous": lambda t: dist.all_reduce_coalesced(t.parts, async_op=True).wait(),
        "deepspeed.comm": lambda t: comm().all_reduce_coalesced(t.parts),
        "manager": lambda t: coalesced(all_reduce, t.parts, False),
        "manager, asynchronous": lambda t: coalesced(all_reduce, t.parts, True),
    },
    (("all_gather_into_tensor", PART),): {
        "attribute": lambda t: dist.all_gather_into_tensor(t.whole, t.part),
        "from-import": lambda t: all_gather_into_tensor(t.whole, t.part),
        "deepspeed.comm": lambda t: comm().all_gather_into_tensor(t.whole, t.part),
        "deepspeed's function": lambda t: comm().allgather_fn(t.whole, t.part),
        "asynchronous": lambda t: all_gather_into_tensor(t.whole, t.part, async_op=True).wait(),
        "old name": lambda t: dist._all_gather_base(t.whole, t.part),
        "functional": lambda t: functional("all_gather_tensor", t.part, 0, dist.group.WORLD),
    },
    (("all_gather", PART),): {
        "attribute": lambda t: dist.all_gather(t.parts, t.part),
        "from-import": lambda t: all_gather(t.parts, t.part),
        "deepspeed.comm": lambda t: comm().all_gather(t.parts, t.part),
        "asynchronous": lambda t: all_gather(t.parts, t.part, async_op=True).wait(),
        "group's method": lambda t: dist.group.WORLD.allgather([t.parts], [t.part]).wait(),
    },
    (("all_gather_into_tensor", 2 * PART),): {
        "manager": lambda t: coalesced(
            lambda tensor: all_gather_into_tensor(torch.empty(RANKS * ELEMENTS), tensor), t.parts, False
        ),
    },
    (("reduce_scatter_tensor", WHOLE),): {
        "attribute": lambda t: dist.reduce_scatter_tensor(t.part, t.whole),
        "from-import": lambda t: reduce_scatter_tensor(t.part, t.whole),
        "deepspeed.comm": lambda t: comm().reduce_scatter_tensor(t.part, t.whole),
        "deepspeed's function": lambda t: comm().reduce_scatter_fn(t.part, t.whole),
        "asynchronous": lambda t: waited(reduce_scatter_tensor(t.part, t.whole, async_op=True)),
        "functional": lambda t: functional("reduce_scatter_tensor", t.whole, "sum", 0, dist.group.WORLD),
    },
    (("reduce_scatter", WHOLE),): {
        "attribute": lambda t: dist.reduce_scatter(t.part, t.parts),
        "from-import": lambda t: reduce_scatter(t.part, t.parts),
        "deepspeed.comm": lambda t: comm().reduce_scatter(t.part, t.parts),
    },
    (("broadcast", PART),): {
        "attribute": lambda t: dist.broadcast(t.part, 0),
        "from-import": lambda t: broadcast(t.part, src=0),
        "deepspeed.comm": lambda t: comm().broadcast(t.part, 0),
        "asynchronous": lambda t: broadcast(t.part, 0, async_op=True).wait(),
        "in the group": lambda t: broadcast(t.part, group_src=0),
    },
    (("reduce", PART),): {
        "attribute": lambda t: dist.reduce(t.part, 0),
        "from-import": lambda t: reduce(t.part, 0),
        "deepspeed.comm": lambda t: comm().reduce(t.part, 0),
    },
    (("gather", PART),): {
        "attribute": lambda t: dist.gather(t.part, t.on_root),
        "from-import": lambda t: gather(t.part, t.on_root, dst=0),
        "deepspeed.comm": lambda t: comm().gather(t.part, t.on_root, 0),
        "asynchronous": lambda t: gather(t.part, t.on_root, async_op=True).wait(),
    },
    (("scatter", PART),): {
        "attribute": lambda t: dist.scatter(t.part, t.on_root),
        "from-import": lambda t: scatter(t.part, t.on_root, src=0),
        "deepspeed.comm": lambda t: comm().scatter(t.part, t.on_root, 0),
    },
    (("all_to_all_single", WHOLE),): {
        "attribute": lambda t: dist.all_to_all_single(torch.empty_like(t.whole), t.whole),
        "from-import": lambda t: all_to_all_single(torch.empty_like(t.whole), t.whole),
        "deepspeed.comm": lambda t: comm().all_to_all_single(torch.empty_like(t.whole), t.whole),
        "asynchronous": lambda t: all_to_all_single(torch.empty_like(t.whole), t.whole, async_op=True).wait(),
        "functional": lambda t: functional("all_to_all_single", t.whole, None, None, dist.group.WORLD),
    },
    (("send", PART),): {
        "attribute": lambda t: in_turn(lambda: dist.send(t.part, 1), lambda: dist.recv(t.part, 0)),
        "from-import": lambda t: in_turn(lambda: send(t.part, 1), lambda: recv(t.part, 0)),
        "from anyone": lambda t: in_turn(lambda: send(t.part, dst=1), lambda: recv(t.part)),
        "deepspeed.comm": lambda t: in_turn(
            lambda: comm().send(t.part, 1), lambda: comm().recv(t.part, 0) and None
        ),
        "group's method": lambda t: in_turn(
            lambda: dist.group.WORLD.send([t.part], 1, 0), lambda: dist.group.WORLD.recv([t.part], 0, 0)
        ),
    },
    (("isend", PART),): {
        "attribute": lambda t: in_turn(lambda: dist.isend(t.part, 1), lambda: dist.irecv(t.part, 0)),
        "from-import": lambda t: in_turn(lambda: isend(t.part, 1), lambda: irecv(t.part, 0)),
        "deepspeed.comm": lambda t: in_turn(lambda: comm().isend(t.part, 1), lambda: comm().irecv(t.part, 0)),
    },
    (("irecv", PART), ("isend", PART)): {"batched": batched},
    (("barrier", 0),): {
        "attribute": lambda t: dist.barrier(),
        "from-import": lambda t: barrier(),
        "deepspeed.comm": lambda t: comm().barrier(),
        "asynchronous": lambda t: barrier(async_op=True).wait(),
    },
    (("monitored_barrier", 0),): {
        "attribute": lambda t: dist.monitored_barrier(),
        "deepspeed.comm": lambda t: comm().monitored_barrier(),
    },
    "objects": {
        "all_gather_object": lambda t: dist.all_gather_object(t.objects, "words"),
        "from-import": lambda t: all_gather_object(t.objects, "words"),
        "deepspeed.comm": lambda t: comm().all_gather_object(t.objects, "words"),
        "broadcast_object_list": lambda t: dist.broadcast_object_list(["words", 2], 0),
        "broadcast, from-import": lambda t: broadcast_object_list(["words", 2], 0),
        "broadcast, deepspeed.comm": lambda t: comm().broadcast_object_list(["words", 2], 0),
        "gather_object": lambda t: gather_object("words", t.root_objects),
        "scatter_object_list": lambda t: scatter_object_list([None], ["words"] * RANKS, 0),
    },
    "DistributedDataParallel": {"reducer": ddp_backward},
}


@contextmanager
def several():
    """A count inside a count."""
    with Traffic() as outer, Traffic() as inner:
        yield inner
    assert outer.messages == inner.messages


def every_spelling():
    """{(spelling's group, spelling): [(operation, bytes, ranks, count)], "sent": bytes, "clock": kinds}."""
    import deepspeed

    deepspeed.init_distributed()
    t, found = Tensors(), {}
    t.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(ELEMENTS, 1, bias=False))
    ddp_backward(t)  # before the second one it agrees on its buckets
    for group, spellings in SPELLINGS.items():
        for name, call in spellings.items():
            call(t)  # opens connections
            dist.barrier()
            with several() as traffic:
                call(t)
            dist.barrier()
            with Clock() as clock:
                call(t)
            messages = sorted(
                (each.operation, each.bytes, each.group, each.count) for each in traffic.messages
            )
            kinds = sorted(kind for kind, *_ in clock.boxes if kind in (*SENT, "barrier"))
            over = [each.over_gloo for each in traffic.messages if each.operation != "reduce"]
            found[group, name] = messages, traffic.sent, over, kinds, len(clock.blocked)
    return found


@pytest.fixture(scope="module")
def reports():
    return launch(every_spelling, ranks=RANKS, device="cpu")


RECEIVED = {"send": "recv", "isend": "irecv"}
NAMES = [(group, name) for group, spellings in SPELLINGS.items() for name in spellings]
PLAIN = [(group, name) for group, name in NAMES if isinstance(group, tuple)]


def ids(value):
    return value if isinstance(value, str) else " and ".join(operation for operation, _ in value)


@pytest.mark.parametrize("group, name", PLAIN, ids=ids)
def test_a_message_is_counted_once_with_its_name_and_bytes(reports, group, name):
    for rank, report in enumerate(reports):
        expected = []
        for operation, size in group:
            if rank == 1 and len(group) == 1:
                operation = RECEIVED.get(operation, operation)
            alone = operation == "recv" and name == "from anyone"
            expected.append((operation, size, (1,) if alone else (0, 1), 1))
        messages, *_, kinds, blocked = report[group, name]
        assert messages == expected
        assert len(kinds) == len(expected) and blocked >= len(expected)


SENT_AS_SAID = [pair for pair in NAMES if ids(pair[0]) not in ("reduce", "barrier", "monitored_barrier")]


@pytest.mark.parametrize("group, name", SENT_AS_SAID, ids=ids)
def test_what_is_counted_is_what_leaves_the_ranks(reports, group, name):
    """To the byte, with gloo's headers, over both ranks together.  A reduce has no formula, and one of a list
    cuts its messages smaller than the formula says."""
    sent = sum(report[group, name][1] for report in reports)
    over = [each for report in reports for each in report[group, name][2]]
    without_headers = sum(carried for carried, _ in over)
    headers = theory.GLOO_HEADER * sum(messages for _, messages in over)
    if ids(group) == "reduce_scatter":
        assert sent > without_headers and (sent - without_headers) % theory.GLOO_HEADER == 0
    else:
        assert sent == pytest.approx(without_headers + headers, abs=0.01)


@pytest.mark.parametrize("name", SPELLINGS["objects"])
def test_objects_travel_as_two_messages_their_sizes_and_themselves(reports, name):
    for report in reports:
        messages, *_, kinds, _ = report["objects", name]
        assert sum(count for *_, count in messages) == len(kinds) >= 2


def test_the_reducer_of_ddp_is_seen(reports):
    for report in reports:
        messages, *_ = report["DistributedDataParallel", "reducer"]
        assert messages == [("all_reduce", PART, (0, 1), 1)]
