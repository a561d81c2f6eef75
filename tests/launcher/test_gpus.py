"""Which GPU a rank takes, and how ranks share: with torch's calls replaced, since most machines have no GPU
(`tests/test_on_gpus.py` is real)."""

import os
from types import SimpleNamespace

import pytest
import torch
from helpers import launch
from helpers.tools.launcher import resources
from helpers.tools.launcher.rank import take_gpu


@pytest.fixture
def gpu(monkeypatch):
    """What was asked of torch: {"device": index, "fraction": of its memory}."""
    asked = {"fraction": None}
    for name in ("LOCAL_RANK", "NCCL_HOSTID"):
        monkeypatch.setenv(name, "unset")
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: asked.update(device=index))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(total_memory=asked.get("memory", 24_000_000_000)),
    )
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda fraction, index: asked.update(fraction=fraction)
    )
    return asked


def test_a_gpu_of_its_own(gpu):
    take_gpu(3, ranks=4, gpus=4)
    assert gpu["device"] == 3 and gpu["fraction"] is None
    assert (os.environ["LOCAL_RANK"], os.environ["NCCL_HOSTID"]) == ("3", "unset")


@pytest.mark.parametrize("rank, device, sharing", [(0, 0, 2), (1, 1, 1), (2, 0, 2)])
def test_three_ranks_on_two_gpus(gpu, rank, device, sharing):
    take_gpu(rank, ranks=3, gpus=2)
    assert (
        gpu["device"] == device
        and os.environ["LOCAL_RANK"] == str(device)
        and os.environ["NCCL_HOSTID"] == f"rank-{rank}"
    )
    assert gpu["fraction"] == (pytest.approx(10.5 / 24) if sharing == 2 else None)


def test_too_many_for_a_gpu(gpu):
    gpu["memory"] = 8_000_000_000
    with pytest.raises(
        MemoryError,
        match="8 ranks share a GPU of 8.0 GB, too little for a CUDA context each: use fewer ranks",
    ):
        take_gpu(0, ranks=8, gpus=1)


def test_ranks_that_have_no_gpu_each_say_in_a_line_that_they_take_the_cpu(monkeypatch, capsys):
    monkeypatch.setattr(resources, "gpu_count", lambda: 2)
    assert launch(os.getpid, 3).device == "cpu"
    assert capsys.readouterr().out == "note: 3 ranks on the CPU, since this machine has 2 GPUs\n"
    launch(os.getpid, 3, device="cpu")
    assert capsys.readouterr().out == ""
