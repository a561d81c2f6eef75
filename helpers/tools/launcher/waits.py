"""Which collective a rank waits in, also where it waits inside C: `work.wait()`, DDP's backward,
`wait_tensor`.

A Python stack does not tell these apart from other work.  So a thread of the rank answers when it is asked:
from what `Work.wait` was called on, and else from torch's flight recorders, which list every collective that
was begun and has not ended, but not gloo's point-to-point messages.  Under NCCL a collective returns at once,
and the rank stands at the next line that needs a number: there the answer has the collective's own line.
Private to torch are `Work._get_op_type`, `Work.wait` itself, `_dump_fr_trace` and `_dump_nccl_trace`.
"""

import _thread
import os
import pickle
import platform
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

Frame = tuple[str, int, str]  # file, line and function of a place in a stack
ASK = getattr(signal, "SIGRTMIN", 0) + 12 if hasattr(signal, "SIGRTMIN") else None  # Linux alone has it
ANSWER = "waits in "  # the beginning of the line that answers
BEGUN = "  Begun in"  # the beginning of each further line: where a collective of NCCL's was begun
COLLECTIVES = ("torch/distributed/", "deepspeed/comm/")  # in a path: a file in which a rank waits for others
# beginnings of functions there that name no collective
GENERIC = ("wait", "trigger_wait", "unwrap", "__torch_dispatch__", "all_wait")
WRAPPERS = ("wrapper", "_wrapper", "log_wrapper")
# torch's c10d::OpType.  What is missing here, as gloo's reduce_scatter, the flight recorder names.
OPERATIONS = {
    0: "broadcast", 1: "all_reduce", 2: "all_reduce_coalesced", 3: "reduce", 4: "all_gather",
    5: "all_gather_into_tensor", 6: "all_gather_coalesced", 7: "gather", 8: "scatter", 9: "reduce_scatter",
    10: "all_to_all_single", 11: "all_to_all", 12: "isend", 13: "irecv", 14: "irecv", 15: "barrier",
    16: "reduce_scatter_tensor",
}  # fmt: skip
FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())  # the system call that waits for a thread

_waited_for = []  # the operation of the handle that the main thread waits for


def waiting_in(frames: Iterable[Frame]) -> str | None:
    """The collective that a stack, outermost frame first, stands in; None where it stands elsewhere."""
    for file, _, name in frames:
        if any(part in file for part in COLLECTIVES) and not name.startswith((*WRAPPERS, *GENERIC)):
            return name
    return None


def remember_waits() -> None:
    """Let `Work.wait` note what it waits for."""
    from torch.distributed import Work

    wait = Work.wait

    def noting_wait(work, *timeout, **options):
        _waited_for.append(OPERATIONS.get(work._get_op_type()))
        try:
            return wait(work, *timeout, **options)
        finally:
            _waited_for.pop()

    Work.wait = noting_wait


def reserve_signal() -> None:
    """Keep the signal `ASK` for the thread that answers: to be called before any other thread begins, since
    threads inherit what is blocked, as CUDA's.  One that takes it nevertheless does not end the rank."""
    if ASK:
        signal.signal(ASK, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {ASK})


def answer_when_asked(file: int) -> None:
    """Start the thread that answers into a file (its descriptor) when the signal `ASK` comes."""
    if ASK:
        # the thread begins with all signals blocked: they are for the main thread
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        _thread.start_new_thread(answer, (file, os.getpid()))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answer(file: int, main: int) -> None:
    while True:
        signal.sigwait({ASK})
        time.sleep(0.1)  # the Python stack comes first, in many small pieces
        if said := (_waited_for[-1] if _waited_for else None) or on_gpu() or on_cpu(main):
            os.write(file, f"\n{ANSWER}{said}\n".encode())


def on_gpu() -> str | None:
    """NCCL's first collective that has not ended, and below it a line for each frame of where it was begun,
    the innermost first; None where all have ended."""
    entry = next((one for one in recorded("_dump_nccl_trace") if one["state"] != "completed"), None)
    if entry is None:
        return None
    frames = frames_of(entry)
    places = [f'{BEGUN} "{file}", line {line} in {name}' for file, line, name in reversed(frames)]
    return "\n".join([name_of(entry, frames), *places])


def on_cpu(main: int) -> str | None:
    """The last collective that has not ended, where the main thread waits for another thread; else None."""
    with suppress(OSError), open(f"/proc/self/task/{main}/syscall") as file:  # not every system tells
        if FUTEX and file.read().split()[0] != FUTEX:
            return None
    entry = next((one for one in reversed(recorded("_dump_fr_trace")) if not one["retired"]), None)
    return entry and name_of(entry, frames_of(entry))


def recorded(dump: str) -> list[dict]:
    """The entries of one of torch's flight recorders, the oldest first; none where torch lacks it."""
    try:
        return pickle.loads(getattr(sys.modules["torch"]._C._distributed_c10d, dump)())["entries"]
    except (AttributeError, KeyError):
        return []


def frames_of(entry: dict) -> list[Frame]:
    """Where a recorded collective was begun, outermost frame first."""
    return [(frame["filename"], frame["line"], frame["name"]) for frame in reversed(entry["frames"])]


def name_of(entry: dict, frames: Iterable[Frame]) -> str:
    return waiting_in(frames) or entry["profiling_name"].partition(":")[2].split()[0]
