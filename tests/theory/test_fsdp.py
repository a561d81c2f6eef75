"""What DDP, FSDP2 and HSDP hold and send: formulas, and real ranks beside them, to the byte."""

import pytest
import torch
from helpers import launch, theory
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import OPERATIONS, Traffic

GROUPS = [
    [(9, 5), (9,)],
    [(1, 9), (1,)],
    [(3, 4), (7, 3)],
]  # nothing divides by 4, two parameters have one row, and the root comes last


class Uneven(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = (torch.nn.Parameter(torch.randn(*shape)) for shape in GROUPS[2])
        self.first, self.second = torch.nn.Linear(5, 9), torch.nn.Linear(9, 1)

    def forward(self, x):
        return (
            self.second(self.first(x) @ (self.last.new_ones(9, 9))) * (self.table.sum() + self.last.sum())
        ).mean()


CASES = {  # the arguments of the formula
    "DDP": {},
    "DDP, bucket view": {},
    "FSDP2": {},
    "kept": {"reshard": False},
    "released": {"reshard": True},
    "bf16": {"dtype": "bf16"},
    "bf16, sums in fp32": {"dtype": "bf16", "reduce_dtype": "fp32"},
    "HSDP": {"replicas": 2},
}


def trained():
    """Every case in the same ranks: what is held at the moments of the third step, and what was sent in
    it."""
    import deepspeed

    deepspeed.init_distributed()
    found = {}
    for name, case in CASES.items():
        with Ledger() as ledger:
            torch.manual_seed(0)
            model = Uneven()
            call = wrapped(model, name, case)
            adam = torch.optim.AdamW(model.parameters())
            ledger.watch(model, adam)
            for _ in range(3):
                with Traffic() as traffic:
                    loss = call(torch.ones(2, 5))
                    ledger.snapshot("after forward")
                    loss.backward()
                    del loss
                    ledger.snapshot("after backward")
                    adam.step()
                    adam.zero_grad()
                ledger.snapshot("after step")
        found[name] = {snapshot.moment: snapshot.categories for snapshot in ledger.snapshots}, traffic.ideal
    return found


def wrapped(model, name, case):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if name.startswith("DDP"):
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view="view" in name)
    types = {"bf16": torch.bfloat16, "fp32": torch.float32, None: None}
    precise = MixedPrecisionPolicy(types[case.get("dtype")], types[case.get("reduce_dtype")])
    ranks, replicas = dist.get_world_size(), case.get("replicas", 1)
    mesh = init_device_mesh("cpu", (replicas, ranks // replicas), mesh_dim_names=("replicate", "shard"))
    keys = {
        "mesh": mesh if replicas > 1 else mesh["shard"],
        "reshard_after_forward": case.get("reshard"),
        "mp_policy": precise,
    }
    for part in (model.first, model.second, model):
        fully_shard(part, **keys)
    return model


@pytest.fixture(scope="module")
def reports():
    return launch(trained, ranks=4)


@pytest.mark.ranks
@pytest.mark.parametrize("name", CASES)
def test_states_are_predicted_to_the_byte(reports, name):
    case = {key: value for key, value in CASES[name].items() if key != "reduce_dtype"}
    for rank, report in enumerate(reports):
        for moment in theory.FSDP_MOMENTS:
            if name.startswith("DDP"):
                expected = theory.ddp_bytes((12, 21, 45, 9, 9, 1), moment=moment, bucket_view="view" in name)
            else:
                expected = theory.fsdp_bytes(GROUPS, ranks=4, rank=rank, moment=moment, **case)
            held = report[name][0][moment]
            assert {key: held[key] for key in expected} == expected, (rank, moment)


@pytest.mark.ranks
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("DDP")])
def test_what_is_sent_is_predicted_to_the_byte(reports, name):
    sent = {}
    for operation, count in reports[0][name][1].items():
        kind, _ = OPERATIONS[operation]  # torch.distributed has had several names for the same collective
        sent[kind] = sent.get(kind, 0) + count
    expected = theory.fsdp_wire_bytes(GROUPS, ranks=4, **CASES[name])
    assert sent == {operation: count for operation, count in expected.items() if count}


def test_equal_groups_are_gathered_twice_even_where_they_are_one_object():
    """The root is the last group, whatever is equal to it."""
    block = [(8, 8)]
    sent = theory.fsdp_wire_bytes([block] * 4, ranks=4)
    assert sent == theory.fsdp_wire_bytes([list(block) for _ in range(4)], ranks=4)
    assert sent["all_gather"] == (3 * 2 + 1) * theory.wire_bytes("all_gather", 4 * 64, 4)


def test_what_divides_by_the_ranks_has_no_padding():
    shapes = [[(8, 3), (16,)], [(4, 2)]]
    held = theory.fsdp_bytes(shapes, ranks=4, rank=3)
    assert held == {
        "parameters": 4 * 12,
        "gradients": 4 * 12,
        "optimizer states": 8 * 12 + 4 * 3,
        "other": 16,
    }
    assert theory.fsdp_bytes(shapes, ranks=4, replicas=4)["parameters"] == 4 * 48


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": 4, "replicas": 3}, "cannot share 4 ranks"),
        ({"ranks": 2, "moment": "later"}, "moment must be"),
        ({"ranks": 2, "rank": 2}, "rank must"),
    ],
)
def test_what_cannot_be_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        theory.fsdp_bytes(GROUPS, **given)


def test_equal_groups_are_each_gathered_twice():
    """Five groups that are one list, as `5 * [shapes]` has them: only the last, the root, stays gathered."""
    shapes, sent = [[8, 4]], []
    for groups in (5 * [shapes], [list(shapes) for _ in range(5)]):
        sent.append(theory.fsdp_wire_bytes(groups, ranks=4)["all_gather"])
    assert sent[0] == sent[1] == (2 * 4 + 1) * theory.wire_bytes("all_gather", 4 * 8 * 4, 4)
