"""What happens inside a rank before and after the learner's function; the same for both back ends of
`launch`.

A rank reads its work (a cloudpickle of function and arguments), runs it, and writes exactly one report: what
the function
returned, or how it failed.  Nothing here decides about other ranks; that is the kernel's business
(`helpers.tools.launch.jobs`).
"""

from __future__ import annotations

import ctypes
import dis
import faulthandler
import gc
import logging
import os
import signal
import struct
import sys
import time
import traceback
import warnings
from typing import TYPE_CHECKING

from helpers.tools.launch.parcel import Pickler, pack, region, unpack
from helpers.tools.launch.pipes import AT_WORK

if TYPE_CHECKING:
    from types import NotImplementedType, TracebackType
    from typing import IO, Any, NoReturn

    import torch
    from torch.distributed import TCPStore

# Warnings that DeepSpeed's own code sets off under the tested torch and that a learner can do nothing about:
# message, category.
KNOWN_NOISE = (
    (r"barrier\(\): using the device under current context", UserWarning),
    (
        r".*(all_gather_into_tensor|reduce_scatter_tensor|_all_gather_base|_reduce_scatter_base).*",
        FutureWarning,
    ),
    (r"Attempting to run cuBLAS, but there was no current CUDA context", UserWarning),
    (
        r"c10d::broadcast_: an autograd kernel was not registered",
        UserWarning,
    ),  # DeepSpeed's pipeline, tied weights
    (r".*isinstance\(treespec, LeafSpec\).*", FutureWarning),
    (r".*is deprecated.*torch\.jit\.script.*", DeprecationWarning),
)

ACROSS = "LAUNCH_ACROSS"  # set where ranks run on machines that have no clock in common but that of the day
# beginnings of files that send and receive, so that their errors tell of another rank; the rest of
# torch.distributed uses them
COMMUNICATING = (
    "torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py", "torch/distributed/rendezvous.py",
    "torch/distributed/_functional_collectives", "torch/distributed/nn/functional.py", "torch/distributed/collective_utils.py",
    "torch/distributed/utils.py", "torch/distributed/_state_dict_utils.py", "torch/distributed/algorithms/ddp_comm_hooks/",
    "torch/distributed/rpc/", "deepspeed/comm/",
)  # fmt: skip
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
            return on_cpu(obj).__reduce_ex__(self.proto)
        return super().reducer_override(obj)

    def __init__(self, file: IO[bytes], protocol: int = 5, **options: object) -> None:
        super().__init__(file, protocol, **options)
        self.proto = protocol


def dumps(value: object, file: int, start: int) -> bytes | memoryview:
    """Bytes of any picklable value; none where they are many, and were written to the file from `start`
    on."""
    parcel = pack(value, ReportPickler)
    if not parcel.is_large:
        return parcel.pickle
    parcel.write(file, start)
    return b""


def said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:
        return f"(its message cannot be shown: {type(problem).__name__})"


def notices(error: BaseException) -> str | None:
    """What an error may be a notice of, for `failures.first_to_fail`.

    "collective": it came out of a collective, as an error does that tells of another rank's end.  "perhaps":
    it came out of C, as from the `wait()` of a handle, or was raised while such an error was handled.  Else
    None: its cause lies in this rank.
    """
    if isinstance(error, (RuntimeError, OSError)) and error.__traceback__:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if any(part in frame.f_code.co_filename for part in COMMUNICATING):
            return "collective"
        if isinstance(error, RuntimeError) and not raised_in_python(error.__traceback__):
            return "perhaps"
    return "perhaps" if error.__context__ and notices(error.__context__) else None


def raised_in_python(part: TracebackType) -> bool:
    """Whether the innermost frame of a traceback stands in a `raise`, and not in a call into C."""
    while part.tb_next:
        part = part.tb_next
    return dis.opname[part.tb_frame.f_code.co_code[part.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: its class may exist in this rank only.  Frames are (file, line, function),
    outermost first.

    `at` is the time in seconds, of a clock that all processes of a machine share; where there are several
    machines, of the clocks that they set."""
    frames = [
        (frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)
    ]
    own = max((index for index, frame in enumerate(frames) if frame[0] == __file__), default=-1)
    cause = error.__cause__
    return {
        "at": time.time() if ACROSS in os.environ else time.monotonic(),
        "notices": notices(error),
        "type": type(error).__name__,
        "message": said(error),
        "frames": [
            frame for frame in frames[own + 1 :] if frame[2] != "__torch_dispatch__"
        ],  # a ledger only passes torch's calls on
        "cause": f"{type(cause).__name__}: {said(cause)}" if cause else None,
    }


def prepare() -> None:
    """Switch off what would hang or break a job on a learner's machine, take this rank's GPU, and silence the
    known noise."""
    # under the deepspeed command the imports are still to be done, and hardly any of what they make is
    # garbage
    gc.disable()
    import deepspeed
    import torch

    gc.enable()
    # DeepSpeed asks this table only whether to use its shared-memory collectives, and fills it by running the
    # compiler.  They are
    # compiled at first use, wait for ever on a stale lock, fail without a compiler, leave files in /dev/shm;
    # gloo does their work.
    deepspeed.ops.__compatible_ops__ = {}
    logging.getLogger("DeepSpeed").addFilter(lambda record: "untested optimizer" not in record.getMessage())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if os.environ["DS_ACCELERATOR"] == "cpu":
        be_batch_work()
    else:
        take_gpu(
            int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        )
    for message, category in KNOWN_NOISE:
        warnings.filterwarnings("ignore", message=message, category=category)


def be_batch_work() -> None:
    """Let no thread of the ranks push another aside because a message woke it; each still has its turn.

    Gloo's thread, woken while the rank's own holds a connection's lock, seems to try that lock and poll, over
    and over, on the processor that the holder needs (so a profile reads).  On two cores that took a fifth of
    the processors' time, and lesson 09 took a third longer.
    """
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or a container forbids it
        pass


def draw_anew() -> None:
    """Seed numpy's global generator as a fresh process does: its state was copied from the forkserver.
    Python's own is seeded by the fork."""
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def take_gpu(rank: int, ranks: int, gpus: int) -> None:
    """A GPU for each rank, as a training script chooses it; where there are fewer, ranks share them in turn.

    NCCL refuses two ranks on one GPU of one host.  Ranks that share therefore pose as hosts of their own, and
    their messages go the way
    of messages between hosts.  Each may take its part of the GPU's memory, less what the driver and NCCL take
    outside torch's allocator.
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
    """Rank 0: serve the rendezvous store on the socket that the kernel bound to MASTER_ADDR, so that no port
    is guessed."""
    from torch.distributed import TCPStore

    size, port = int(os.environ["WORLD_SIZE"]), int(os.environ["MASTER_PORT"])
    return TCPStore(
        os.environ["MASTER_ADDR"],
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def write(descriptor: int, body: bytes | memoryview) -> None:
    """The report: eight bytes of length, then the body; a length of zero says that it lies in the file."""
    for part in (struct.pack("!Q", len(body)), body):
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view[: 1 << 20]) :]


def work(file: int, values: int, start: int) -> bytes | memoryview:
    """Run the function that the file holds; the report's bytes, none where it lies in the file `values` from
    `start` on."""
    try:
        function, arguments = unpack(file, mapped=True)
        value = function(**arguments)
    except (
        BaseException
    ) as error:  # SystemExit and KeyboardInterrupt too: a rank that leaves early must say so
        return dumps({"error": describe(error)}, values, start)
    try:
        return dumps({"value": value}, values, start)
    except Exception as error:
        return dumps(
            {"error": {**describe(error), "returned": type(value).__qualname__, "frames": []}}, values, start
        )


def flush() -> None:
    """What Python and what C libraries have buffered; the function may have replaced or closed its
    streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    ctypes.CDLL(None).fflush(None)


def run(
    shared: int, report: int, stacks: int, listener: int | None = None, values: int | None = None
) -> NoReturn:
    """One rank from start to report; then wait to be stopped.

    The file `shared` holds the work, and takes a large report in this rank's region; on another machine the
    file `values` of its own does.

    A rank that has finished keeps its sockets open, so that no slower rank sees a connection closed by a rank
    that did nothing wrong.
    """
    rank = int(os.environ["RANK"])
    file = os.fdopen(stacks, "w")
    faulthandler.enable(file, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    sys.stdout.reconfigure(line_buffering=True)
    prepare()
    draw_anew()
    store = serve_store(listener) if listener is not None else None  # noqa: F841  (lives as long as this frame)
    os.write(report, AT_WORK)
    body = work(shared, shared, region(rank)) if values is None else work(shared, values, 0)
    flush()
    write(report, body)
    os.close(report)
    while True:
        signal.pause()
