"""What only a machine with GPUs can show; skipped elsewhere."""

import pytest
from helpers import launch, models, theory
from helpers.tools.launcher.resources import gpu_count
from helpers.tools.measure import constants
from helpers.tools.measure.held import MODEL_STATES
from helpers.tools.measure.ledger import Ledger
from tests.support import configuration

GPUS = gpu_count()
MiB = 2**20
MOST_WORKSPACES = 128 * MiB
pytestmark = [pytest.mark.ranks, pytest.mark.skipif(GPUS == 0, reason="no GPU on this machine")]


def all_reduce():
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from deepspeed.accelerator import get_accelerator

    deepspeed.init_distributed()
    one = torch.ones(1, device=get_accelerator().current_device_name())
    comm.all_reduce(one)
    return one.item(), str(one.device), torch.distributed.get_backend()


@pytest.mark.parametrize("ranks", [ranks for ranks in (1, 2, 4, 8) if ranks <= max(GPUS, 1)])
def test_a_rank_per_gpu_uses_nccl(ranks):
    reports = launch(all_reduce, ranks=ranks)
    assert reports.device == "cuda"
    assert list(reports) == [(float(ranks), f"cuda:{rank}", "nccl") for rank in range(ranks)]


def test_more_ranks_than_gpus_use_the_cpu():
    reports = launch(all_reduce, ranks=GPUS + 1)
    assert reports.device == "cpu" and {backend for _, _, backend in reports} == {"gloo"}


def test_more_ranks_than_gpus_share_them_where_forced():
    reports = launch(all_reduce, ranks=2 * GPUS, device="cuda")
    assert list(reports) == [(2.0 * GPUS, f"cuda:{rank % GPUS}", "nccl") for rank in range(2 * GPUS)]


def test_cpu_can_be_forced():
    assert launch(all_reduce, ranks=1, device="cpu")[0][1:] == ("cpu", "gloo")


def test_a_module_comes_back_from_a_gpu_with_its_parameters():
    model = launch(lambda: __import__("torch").nn.Linear(2, 3).cuda(), ranks=1)[0]
    assert [
        (name, parameter.requires_grad, parameter.device.type) for name, parameter in model.named_parameters()
    ] == [
        ("weight", True, "cpu"),
        ("bias", True, "cpu"),
    ]


def from_the_allocator(ledger, before=0):
    """What torch's allocator was asked for and no tensor accounts for, and what of that were workspaces of
    matrix products, in bytes."""
    import torch
    from helpers.tools.measure.internals import clear_workspaces

    def requested():
        return torch.cuda.memory_stats()["requested_bytes.all.current"] - before

    asked = requested()
    clear_workspaces()
    return requested() - ledger.current, asked - requested()


def assert_nothing_was_missed(beyond, workspaces, barriers=0):
    """The ledger saw every tensor: what is left are workspaces that could not be cleared (whole MiB), and a
    byte of NCCL's barrier."""
    assert 0 <= beyond <= MOST_WORKSPACES and beyond % MiB == barriers, (
        f"{beyond:,} bytes that the ledger did not see"
    )
    assert 0 <= workspaces <= MOST_WORKSPACES


def training_in_plain_torch():
    """[(moment, the ledger's categories, bytes beyond, workspaces)] of three steps, and how far the
    allocator's peak is above the ledger's."""
    import torch
    from helpers import corpus

    rows, device = [], torch.device("cuda:0")
    torch.cuda.init()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    with Ledger("cuda") as ledger:
        model = models.build(models.GPT).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        ledger.watch(model, optimizer)

        def note(moment):
            torch.cuda.synchronize()
            rows.append((moment, ledger.categories(), *from_the_allocator(ledger, before)))

        for step in range(3):
            loss = model(*corpus.batch(step, 2, 64, device=device))
            note("after forward")
            loss.backward()
            del loss
            note("after backward")
            optimizer.step()
            optimizer.zero_grad()
            note("after step")
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before - ledger.peak
    return rows, peak


def test_the_ledger_counts_what_torchs_allocator_was_asked_for():
    """To the byte, and by category what theory says: 4 bytes per parameter, 4 per gradient, 8 of Adam; its
    fused form has its counters on the GPU."""
    rows, peak = launch(training_in_plain_torch, ranks=1, device="cuda")[0]
    elements = [parameter.numel() for parameter in models.GPT().parameters()]
    states = {
        "parameters": 4 * sum(elements),
        "gradients": 4 * sum(elements),
        "optimizer states": 8 * sum(elements) + 4 * len(elements),
    }
    for index, (moment, found, beyond, workspaces) in enumerate(rows):
        assert_nothing_was_missed(beyond, workspaces)
        assert found["parameters"] == states["parameters"]
        assert found["gradients"] == (states["gradients"] if moment == "after backward" else 0)
        assert found["optimizer states"] == (
            states["optimizer states"] if index >= 2 else 0
        )  # from the first step on
    assert 0 <= peak <= MOST_WORKSPACES


def zero_configuration(stage):
    return configuration(stage, accumulation=2, stage3_param_persistence_threshold=0)


def zero_states(stage):
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus

    with Ledger() as ledger:
        model = models.build(models.GPT)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=zero_configuration(stage)
        )
        ledger.watch(engine)
        for micro in range(3):
            batch = corpus.batch(
                micro, comm.get_world_size(), 8, comm.get_rank(), comm.get_world_size(), engine.device
            )
            engine.backward(engine(*batch))
            del batch
            if micro == 2:
                return ledger.snapshot("between micro-batches").categories, *from_the_allocator(ledger)
            engine.step()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zeros_states_are_those_predicted_and_all_that_was_asked_for(stage):
    ranks = max(GPUS, 1)
    elements = [parameter.numel() for parameter in models.GPT().parameters()]
    for rank, (found, beyond, workspaces) in enumerate(
        launch(zero_states, ranks=ranks, arguments={"stage": stage}, device="cuda")
    ):
        assert_nothing_was_missed(beyond, workspaces, barriers=1)
        predicted = theory.deepspeed_bytes(
            elements, zero_configuration(stage), ranks=ranks, rank=rank, device="cuda"
        )
        assert {category: found[category] for category in MODEL_STATES} == {
            category: predicted[category] for category in MODEL_STATES
        }


def clocked_steps(stage):
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus
    from helpers.tools.measure.clock import Clock

    deepspeed.init_distributed()
    model = models.build(models.GPT)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(stage, overlap_comm=True)
    )
    rows = corpus.batch(0, comm.get_world_size(), 8, comm.get_rank(), comm.get_world_size(), engine.device)

    def step():
        engine.backward(engine(*rows))
        engine.step()

    step()
    with Clock() as clock:
        clock.watch(engine)
        step()
    return clock


def test_a_clock_on_gpus_has_the_order_of_a_step():
    """By CUDA's events: forward before backward before the optimizer, and every box within the clock's
    seconds."""
    ranks = max(GPUS, 1)
    for clock in launch(clocked_steps, ranks=ranks, arguments={"stage": 2}, device="cuda"):
        first = {kind: (start, end) for kind, _, start, end in reversed(clock.boxes)}
        order = [moment for kind in ("forward", "backward", "optimizer") for moment in first[kind]]
        assert order == sorted(order) and clock.cost > 0
        assert all(start <= end for *_, start, end in clock.boxes)
        assert ranks == 1 or {"all-reduce", "reduce-scatter", "reduce"} & set(first)
        assert clock.overlap("backward") is None or 0 <= clock.overlap("backward") <= 1


def test_a_machines_constants_are_measured_on_its_gpus():
    small = constants.Effort(256, (64, 128), 2**20, (1, 2, 64, 16), (2**10, 2**20), 0.01)
    for found in launch(constants.constants, ranks=max(GPUS, 1), arguments={"effort": small}, device="cuda"):
        assert found.asynchronous and set(found.misaligned) == set(found.matrix) == {"bf16", "fp32"}
        assert (found.bandwidth is None) == (GPUS < 2) and found.launch > 0 and found.call > 0
        assert theory.MachineConstants.from_dict(found.to_dict()) == found
