"""Large values to the ranks and back: carried beside the pickle, and as ordinary as small ones."""

import copy
import os
import sys

import cloudpickle
import numpy
import pytest
import torch
from helpers import launch
from helpers.tools.launcher import jobs, parcel
from helpers.tools.launcher.failures import Outcome

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MANY = 400_000  # elements: 1.6 MB in fp32, which lies beside the pickle; a few lie within it


@pytest.fixture(params=[5, MANY], ids=["small", "large"])
def size(request):
    return request.param


def there_and_back(*values):
    """Values as a rank got them and sent them back."""
    return launch(lambda: values, 1)[0]


def same(left, right):
    return (
        type(left) is type(right)
        and left.dtype == right.dtype
        and left.requires_grad == right.requires_grad
        and torch.equal(left, right)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_of_every_dtype_arrive(dtype, size):
    tensor = torch.arange(size).to(dtype)
    (back,) = there_and_back(tensor)
    assert same(back, tensor)


def test_strides_and_offsets_arrive(size):
    base = torch.arange(2.0 * size).reshape(size, 2)
    views = base.T, base[1:, 1], base[::2], base[:0], torch.tensor(7.0), base.to(torch.complex64).conj()
    for view, back in zip(views, there_and_back(*views)):
        assert same(back, view)
        assert (
            back.stride() == view.stride()
            and back.storage_offset() == view.storage_offset()
            and back.is_conj() == view.is_conj()
        )


def test_tensors_that_share_memory_share_it_still(size):
    base = torch.zeros(size)
    tied = torch.nn.Linear(1, size, bias=False)
    head = torch.nn.Linear(1, size, bias=False)
    head.weight = tied.weight

    def job():
        base[0] = 1
        return base[:2].tolist(), view.tolist(), base, view, tied, head

    view = base[:2]
    seen, seen_in_view, base_back, view_back, tied_back, head_back = launch(job, 1)[0]
    assert seen == seen_in_view == [1, 0]
    base_back[1] = 2
    assert view_back.tolist() == [1, 2]
    assert tied_back.weight is head_back.weight
    assert base[0] == 0


def test_parameters_and_gradients_arrive(size):
    class Scale(torch.nn.Parameter):
        pass

    plain, frozen, own = (
        torch.nn.Parameter(torch.ones(size)),
        torch.nn.Parameter(torch.ones(size), requires_grad=False),
        Scale(torch.ones(size)),
    )
    needs = torch.ones(size, requires_grad=True)
    for sent, back in zip((plain, frozen, own, needs), there_and_back(plain, frozen, own, needs)):
        assert back.requires_grad == sent.requires_grad and torch.equal(back, sent) and back.is_leaf
        assert isinstance(back, torch.nn.Parameter) == isinstance(sent, torch.nn.Parameter)

    def trained():
        model = copy.deepcopy(layer)
        (model(torch.ones(1)).sum()).backward()
        return model, model.weight.grad

    layer = torch.nn.Linear(1, size)
    model, gradient = launch(trained, 1)[0]
    assert torch.equal(model.weight, layer.weight) and torch.equal(gradient, torch.ones(size, 1))
    model(torch.ones(1)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_unusual_tensors_arrive(size):
    sparse = torch.eye(5).to_sparse()
    (back, meta) = there_and_back(sparse, torch.empty(size, device="meta"))
    assert torch.equal(back.to_dense(), torch.eye(5))
    assert meta.device.type == "meta" and meta.shape == (size,)


def test_numpy_arrays_arrive(size):
    fixed = numpy.arange(size)
    fixed.flags.writeable = False
    arrays = (
        numpy.arange(2.0 * size).reshape(size, 2),
        numpy.asfortranarray(numpy.ones((size, 2))),
        numpy.arange(size)[::2],
        fixed,
    )
    for array, back in zip(arrays, there_and_back(*arrays)):
        assert back.dtype == array.dtype and numpy.array_equal(back, array)
        assert back.flags.writeable == array.flags.writeable
    assert there_and_back(numpy.array(["a", None], dtype=object))[0].tolist() == ["a", None]


def test_long_bytes_and_lists_arrive():
    values = bytes(range(256)) * 10_000, bytearray(3_000_000), list(range(MANY)), "é" * MANY
    assert there_and_back(*values) == values


def test_what_a_rank_writes_to_its_tensors_nobody_else_sees(size):
    def job():
        rank = int(os.environ["RANK"])
        deepspeed.init_distributed()
        before = tensor[0].item(), array[0].item()
        torch.distributed.barrier()
        tensor.fill_(rank + 1)
        array[:] = rank + 1
        torch.distributed.barrier()
        return before, set(tensor.tolist()), set(array.tolist())

    import deepspeed

    tensor, array = torch.zeros(size), numpy.zeros(size)
    assert launch(job, 3) == [((0, 0), {rank + 1}, {rank + 1}) for rank in range(3)]
    assert tensor.sum() == 0 and array.sum() == 0


def test_returned_tensors_are_ordinary(size):
    """They may be written to and grow as any other, and each rank's are its own."""
    first, second = launch(lambda: torch.ones(size), 2)
    first += 1
    assert first.sum() == 2 * size and second.sum() == size
    assert not first.is_shared() and first.untyped_storage().resizable()
    first.resize_(2 * size)
    first.requires_grad_().sum().backward()


def test_a_tensor_that_was_sent_is_what_it_was(size):
    tensor = torch.ones(size)
    launch(lambda: len(tensor), 1)
    assert tensor.untyped_storage().resizable() and not tensor.is_shared()


def test_a_system_without_memory_files(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    tensor = torch.ones(MANY)
    (seen, back), _ = launch(lambda: (tensor.sum().item(), tensor), 2)
    assert seen == MANY and torch.equal(back, tensor)


def test_more_than_the_machine_holds(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a job was started")

    x = torch.ones(100_000_000)
    monkeypatch.setattr(jobs, "ForkedJob", refuse)
    monkeypatch.setattr(jobs.resources, "free_memory", lambda: 300_000_000)
    with pytest.raises(
        MemoryError, match=r"^the function carries 0.4 GB from the notebook to the ranks, and 0.3 GB is free$"
    ):
        launch(lambda: len(x), 2)


def test_a_report_that_does_not_fit_is_told(monkeypatch):
    def job():
        parcel.REGION = 2_000_000
        return torch.ones(MANY)

    with pytest.raises(
        jobs.RankError,
        match="^rank 0 of 1 returned a Tensor, which cannot be sent back: ValueError: it takes 0.0 GB",
    ):
        launch(job, 1)


FLOOD = """
import os, sys, time
import psutil
from helpers import launch

def job(spelling):
    until = time.monotonic() + 4
    print("the beginning", flush=True)
    while time.monotonic() < until:
        if spelling == "lines":
            print("x" * 100)
        elif spelling == "stderr without lines":
            sys.stderr.write("x" * 10_000)
        else:
            os.write(1, b"\\xff\\x00" * 20_000)
    print("the end", flush=True)

value = []
for spelling in ("lines", "stderr without lines", "bytes"):
    before = psutil.Process().memory_info().rss
    reports = launch(job, RANKS, {"spelling": spelling}, timeout=120)
    assert all("the beginning" in text and text.endswith("the end\\n") for text in reports.outputs)
    value.append((psutil.Process().memory_info().rss - before, [len(text) for text in reports.outputs]))
"""


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_flood_of_words_does_not_fill_the_kernel(ranks, kernels):
    """Of what is written only the beginning and the end stay: 32 MB of a job, and half as much again."""
    (kernel,) = kernels()
    for grown, lengths in kernel.run(FLOOD.replace("RANKS", str(ranks)), seconds=400):
        assert grown < 150_000_000 and sum(lengths) < 50_000_000


def test_the_beginning_and_the_end_of_what_a_rank_writes_are_kept():
    outcome = Outcome(0, most=1000)
    for number in range(10_000):
        outcome.add("output", f"{number} é\n".encode())
    assert outcome.text.startswith("0 é\n1 é\n") and outcome.text.endswith("9998 é\n9999 é\n")
    assert len(outcome.output) <= 1500 and " bytes were not kept ..." in outcome.text
    written = sum(len(f"{number} é\n".encode()) for number in range(10_000))
    assert outcome.left_out == written - len(outcome.output)
