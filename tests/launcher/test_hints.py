"""Hints: each is given for the message that torch, DeepSpeed or Python really has, and no other message gets
one."""

import re
import sys
from datetime import timedelta
from pathlib import Path

import cloudpickle
import pytest
from helpers import launch
from helpers.tools.launcher.failures import HINTS, Outcome, RankError, failure

cloudpickle.register_pickle_by_value(sys.modules[__name__])

INIT_FIRST = "call deepspeed.init_distributed() first"
BATCH_SIZE = "train_batch_size must equal"
NOT_DEFINED = "run the cell that defines the name first"
NOT_INSTALLED = "the module is not installed in this environment"
NEVER_CAME = "a rank never came to this collective"
CLOSED = "one has closed its connections"
SIZES = "a message had another size"
FP16 = "this CPU cannot compute in fp16"
TOO_LARGE = "do not fit on this GPU"


def hints(message):
    return re.findall("^  Hint: (.*)$", str(message), flags=re.M)


def raised(type, message, notices=None, frames=(("/tmp/cell.py", 7, "job"),)):
    return Outcome(
        0,
        report={
            "error": {
                "type": type,
                "message": message,
                "frames": list(frames),
                "cause": None,
                "at": 1.0,
                "notices": notices,
            }
        },
    )


# --- Raised in a rank


def torch_without_init():
    import torch.distributed

    torch.distributed.barrier()


def a_collective_without_init():
    import deepspeed
    import torch

    deepspeed.comm.all_reduce(torch.ones(2))


def another_collective_without_init():
    import deepspeed
    import torch

    deepspeed.comm.broadcast(torch.ones(2), 0)


def rank_without_init():
    import deepspeed

    deepspeed.comm.get_rank()


def world_size_without_init():
    import deepspeed

    deepspeed.comm.get_world_size()


def batch_sizes_that_disagree():
    import deepspeed
    import torch

    config = {
        "train_batch_size": 5,
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
    }
    deepspeed.initialize(model=torch.nn.Linear(1, 1), config=config)


def a_name_that_nobody_defined():
    return not_defined_anywhere  # noqa: F821


def a_module_that_is_not_installed():
    import no_module_of_this_name  # noqa: F401


def nothing_received_in_time():
    import os

    import deepspeed
    import torch

    deepspeed.init_distributed()
    if os.environ["RANK"] == "0":
        torch.distributed.irecv(torch.ones(2), 1).wait(timedelta(seconds=0.5))


def connections_closed():
    import os

    import deepspeed
    import torch

    deepspeed.init_distributed()
    torch.distributed.destroy_process_group() if os.environ["RANK"] == "1" else torch.distributed.barrier()


def messages_of_different_sizes():
    import os

    import deepspeed
    import torch

    deepspeed.init_distributed()
    torch.distributed.all_reduce(torch.ones(1000 if os.environ["RANK"] == "1" else 10))


@pytest.mark.parametrize(
    "job, ranks, hint",
    [
        (torch_without_init, 1, INIT_FIRST),
        (a_collective_without_init, 1, INIT_FIRST),
        (another_collective_without_init, 1, INIT_FIRST),
        (rank_without_init, 1, INIT_FIRST),
        (world_size_without_init, 1, INIT_FIRST),
        (batch_sizes_that_disagree, 1, BATCH_SIZE),
        (a_name_that_nobody_defined, 1, NOT_DEFINED),
        (a_module_that_is_not_installed, 1, NOT_INSTALLED),
        (nothing_received_in_time, 2, NEVER_CAME),
        (connections_closed, 2, CLOSED),
        (messages_of_different_sizes, 2, SIZES),
    ],
)
def test_what_a_rank_raised_is_explained(job, ranks, hint):
    with pytest.raises(RankError) as caught:
        launch(job, ranks, device="cpu", timeout=60)
    (said,) = hints(caught.value)
    assert hint in said, caught.value


# --- What only some machines can raise

FP16_MESSAGE = "Type fp16 is not supported on your device."
CUDA_MESSAGE = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.18 GiB of "
    "which 15.06 MiB is free."
)


@pytest.mark.parametrize(
    "type, message, hint", [("ValueError", FP16_MESSAGE, FP16), ("OutOfMemoryError", CUDA_MESSAGE, TOO_LARGE)]
)
def test_what_another_machine_raises_is_explained(type, message, hint):
    (said,) = hints(failure([raised(type, message)]))
    assert hint in said


def test_deepspeed_still_says_so_of_fp16():
    from importlib.util import find_spec

    assert FP16_MESSAGE in (Path(find_spec("deepspeed").origin).parent / "runtime/engine.py").read_text()


def test_a_rank_that_died_is_explained_by_what_it_wrote():
    (said,) = hints(failure([Outcome(0, status=1, ended_at=1.0, output=bytearray(CUDA_MESSAGE, "utf-8"))]))
    assert TOO_LARGE in said


def test_there_is_no_hint_beside_those_that_are_tested_here():
    tested = (INIT_FIRST, BATCH_SIZE, NOT_DEFINED, NOT_INSTALLED, NEVER_CAME, CLOSED, SIZES, FP16, TOO_LARGE)
    assert [sum(words in said for words in tested) for said in HINTS.values()] == [1] * len(tested)


# --- No hint


@pytest.mark.parametrize(
    "type, message",
    [
        ("ValueError", "seven"),
        ("AttributeError", "'NoneType' object has no attribute 'all_reduce'"),  # in a line of the learner's
        ("AttributeError", "'Engine' object has no attribute 'all_reduce'"),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 8 bytes.",
        ),
        ("RuntimeError", "Connection closed by peer"),
        ("ImportError", "cannot import name 'nothing' from 'torch'"),
        ("NameError", "name conflict: two layers are called 'first'"),
        ("TimeoutError", "Timed out waiting for my own server"),
        ("ValueError", "train_batch_size must be positive"),
    ],
)
def test_another_message_gets_none(type, message):
    assert hints(failure([raised(type, message)])) == []
