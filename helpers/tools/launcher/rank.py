"""What happens inside a rank before and after the learner's function; the same for all back ends of `launch`.

A rank reads its work (a cloudpickle of function and arguments), runs it, and writes exactly one report: what
the function returned, or how it failed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import signal
import struct
import sys
import traceback
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from . import leftovers, waits
from .describing import describe, undescribable
from .environment import threads_of
from .parcel import PROTOCOL, Pickler, pack, region, unpack
from .pipes import ASK_STACK, AT_WORK

if TYPE_CHECKING:
    from types import NotImplementedType
    from typing import NoReturn

    import torch
    from torch.distributed import TCPStore

# Warnings that DeepSpeed's own code sets off and that a learner can do nothing about
KNOWN_NOISE = (
    (r"barrier\(\): using the device under current context", UserWarning),
    (
        r".*(all_gather_into_tensor|reduce_scatter_tensor|_(all_gather|reduce_scatter)_base)",
        FutureWarning,
    ),
    (r"Attempting to run cuBLAS, but there was no current CUDA context", UserWarning),
    (r"c10d::broadcast_: an autograd kernel was not registered", UserWarning),  # pipelines, tied weights
    (r".*isinstance\(treespec, LeafSpec\).*", FutureWarning),
    (r".*is deprecated.*torch\.jit\.script.*", DeprecationWarning),
    (r"This process .* is multi-threaded, use of fork", DeprecationWarning),  # gloo's threads, and `waits`
)
# bytes of a GPU that a process takes outside torch's allocator: the driver's context, kernels, NCCL's buffers
OUTSIDE_ALLOCATOR = 1_500_000_000


def on_accelerator(tensor: torch.Tensor) -> bool:
    return tensor.device.type not in ("cpu", "meta")


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU that is a parameter if the tensor is one, requires a gradient if it does, and has its
    attributes."""
    torch = sys.modules["torch"]
    copy = tensor.detach().cpu()
    copy = torch.nn.Parameter(copy, False) if isinstance(tensor, torch.nn.Parameter) else copy
    vars(copy).update(vars(tensor))
    return copy.requires_grad_(tensor.requires_grad)


class ReportPickler(Pickler):
    """Pickles what a rank returns; tensors on an accelerator travel as CPU tensors, since the kernel may not
    use the device."""

    def reducer_override(self, obj: object) -> tuple | NotImplementedType:
        torch = sys.modules.get("torch")
        if torch and isinstance(obj, torch.Tensor) and on_accelerator(obj):
            return on_cpu(obj).__reduce_ex__(PROTOCOL)
        return super().reducer_override(obj)


def dumps(value: object, file: int, start: int) -> bytes | memoryview:
    """Bytes of any picklable value; none where they are many, and were written to the file from `start`
    on."""
    parcel = pack(value, ReportPickler)
    if not parcel.is_large:
        return parcel.pickle
    parcel.write(file, start)
    return b""


def prepare() -> None:
    """Switch off what would hang or break a job on a learner's machine, take this rank's GPU, and silence the
    known noise."""
    gc.disable()  # under the deepspeed command the imports are still to be done; they make hardly any garbage
    import deepspeed
    import torch

    gc.enable()
    # By this table DeepSpeed decides whether to use its shared-memory collectives, which must be compiled,
    # wait for ever on a stale lock, and leave files in /dev/shm.  gloo does their work.
    deepspeed.ops.__compatible_ops__ = {}
    logging.getLogger("DeepSpeed").addFilter(lambda record: "untested optimizer" not in record.getMessage())
    torch.set_num_threads(threads_of(os.environ))
    if os.environ["DS_ACCELERATOR"] == "cpu":
        be_batch_work()
    else:
        local_rank, ranks_here = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        take_gpu(local_rank, ranks_here, torch.cuda.device_count())
    for message, category in KNOWN_NOISE:
        warnings.filterwarnings("ignore", message=message, category=category)


def be_batch_work() -> None:
    """Let no thread of the ranks push another aside because a message woke it: gloo's, woken while the rank's
    own holds a connection's lock, seems to poll on the processor that the holder needs, which on two cores
    took a fifth of the processors' time."""
    with suppress(AttributeError, OSError):  # not Linux, or a container forbids it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def take_gpu(rank: int, ranks: int, gpus: int) -> None:
    """A GPU for each rank, as a training script chooses it; where there are fewer, ranks share them in turn.

    Ranks that share pose as hosts of their own, since NCCL refuses two on one GPU of one host.  Each may take
    its part of the GPU's memory, less what the driver and NCCL take outside torch's allocator.
    """
    import torch

    gpu = rank % gpus
    os.environ["LOCAL_RANK"] = str(gpu)
    torch.cuda.set_device(gpu)
    if ranks > gpus:
        os.environ["NCCL_HOSTID"] = f"rank-{rank}"
    if (sharing := len(range(gpu, ranks, gpus))) > 1:
        memory = torch.cuda.get_device_properties(gpu).total_memory
        part = memory / sharing - OUTSIDE_ALLOCATOR
        if part <= 0:
            raise MemoryError(
                f"{sharing} ranks share a GPU of {memory / 1e9:.1f} GB, too little for a CUDA "
                "context each: use fewer ranks"
            )
        torch.cuda.set_per_process_memory_fraction(part / memory, gpu)


def serve_store(listener: int) -> TCPStore:
    """Rank 0: serve the rendezvous store on the socket that the kernel bound to MASTER_ADDR."""
    from torch.distributed import TCPStore

    address, port, size = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
    options = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener}
    return TCPStore(address, int(port), int(size), **options)


def write(descriptor: int, body: bytes | memoryview) -> None:
    """The report: eight bytes of length, then the body; a length of zero says that it lies in the file."""
    for part in (struct.pack("!Q", len(body)), body):
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view[: 1 << 20]) :]


def work(file: int, values: int, start: int) -> bytes | memoryview:
    """Run the function that the file holds; the report's bytes, none where it lies in the file `values` from
    `start` on."""
    rank = os.getpid()
    try:
        function, arguments = unpack(file, mapped=True)
        value = function(**arguments)
    except BaseException as error:  # SystemExit too: a rank that leaves early must say so
        if os.getpid() != rank:
            end_child(error)
        return dumps({"error": described(error)}, values, start)
    if os.getpid() != rank:
        end_child()
    try:
        return dumps({"value": value}, values, start)
    except BaseException as error:
        failure = {**described(error), "returned": type(value).__qualname__, "frames": []}
        return dumps({"error": failure}, values, start)


def described(error: BaseException) -> dict:
    try:
        return describe(error)
    except BaseException as problem:
        return undescribable(problem)


def end_child(error: BaseException | None = None) -> NoReturn:
    """End a process that the function has forked and that has left the function: only the rank reports."""
    status = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = error.code or 0
    elif error:
        traceback.print_exception(error)
        status = 1
    flush()
    os._exit(status & 0xFF)


def flush() -> None:
    """What Python and what C libraries have buffered."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # the function has replaced or closed it
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def run(
    shared: int, report: int, stacks: int, listener: int | None = None, values: int | None = None
) -> NoReturn:
    """One rank from start to report; then wait to be stopped, with its sockets open: no slower rank sees a
    connection closed by a rank that did nothing wrong.

    The file `shared` holds the work, and takes a large report in this rank's region; the file `values` does
    where there is one.
    """
    rank = int(os.environ["RANK"])
    file = os.fdopen(stacks, "w")
    faulthandler.enable(file, all_threads=False)
    faulthandler.register(ASK_STACK, file, all_threads=False)
    sys.stdout.reconfigure(line_buffering=True)
    leftovers.list_resources()
    waits.reserve_signal()
    prepare()
    waits.remember_waits()
    waits.answer_when_asked(stacks)
    if numpy_random := sys.modules.get("numpy.random"):  # its state was copied from the forkserver
        numpy_random.seed()
    store = serve_store(listener) if listener is not None else None  # noqa: F841  (lives as long as this frame)
    os.write(report, AT_WORK)
    body = work(shared, shared, region(rank)) if values is None else work(shared, values, 0)
    flush()
    write(report, body)
    os.close(report)
    while True:
        signal.pause()
