"""What only a machine with GPUs can show; skipped elsewhere."""

import pytest
from helpers import launch, models, theory
from helpers.launcher.machine import gpu_count
from helpers.measure.ledger import Ledger

GPUS = gpu_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="no GPU on this machine")


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
    assert [(name, parameter.requires_grad, parameter.device.type) for name, parameter in model.named_parameters()] == [
        ("weight", True, "cpu"),
        ("bias", True, "cpu"),
    ]


def requested_bytes():
    """The ledger's bytes and those that torch's allocator was asked for: [(moment, ledger, allocator)], current and peak."""
    import torch
    from helpers import corpus

    def requested(which):
        return torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]

    rows, device = [], torch.device("cuda:0")
    torch.cuda.init()
    before = requested("current")
    torch.cuda.reset_peak_memory_stats()
    with Ledger("cuda") as ledger:
        model = models.build(models.GPT).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        ledger.watch(model, optimizer)
        for step in range(3):
            loss = model(*corpus.batch(step, 2, 64, device=device))
            rows.append(("after forward", ledger.current, requested("current") - before))
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
            rows.append(("after step", ledger.current, requested("current") - before))
        rows.append(("peak", ledger.peak, requested("peak") - before))
    return rows


def test_the_ledger_counts_what_torchs_allocator_was_asked_for():
    """Matrix products may ask for a workspace of their own, which is no tensor: the allocator's figures may exceed the ledger's by it."""
    rows = launch(requested_bytes, ranks=1)[0]
    workspaces = {allocator - ledger for moment, ledger, allocator in rows if moment == "after step"}
    assert len(workspaces) <= 2 and min(workspaces) >= 0, rows


def zero_states(stage):
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 10_000, "overlap_comm": False, "stage3_param_persistence_threshold": 0},
    }
    with Ledger() as ledger:
        model = models.build(models.GPT)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for micro in range(3):
            batch = corpus.batch(micro, comm.get_world_size(), 8, comm.get_rank(), comm.get_world_size(), engine.device)
            engine.backward(engine(*batch))
            del batch
            if micro == 2:
                return ledger.snapshot("between micro-batches").categories
            engine.step()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_parameters_gradients_and_states_are_those_of_the_cpu(stage):
    numels = [parameter.numel() for parameter in models.GPT().parameters()]
    for rank, found in enumerate(launch(zero_states, ranks=max(GPUS, 1), arguments={"stage": stage})):
        options = {"reduce_bucket_size": 10_000, "overlap_comm": False, "persistence_threshold": 0, "device": "cuda"}
        predicted = theory.deepspeed_bytes(numels, max(GPUS, 1), rank, stage, **options)
        for category in ("parameters", "gradients", "master weights", "optimizer states"):
            assert found[category] == predicted[category], (category, found, predicted)
