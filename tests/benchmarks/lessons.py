"""Time and memory of every lesson and of what stands beside them, on two cores: `python
tests/benchmarks/lessons.py` executes each twice, as this processor does it and as one with no more than AVX2,
prints a table, and says what takes longer there than it may.

Memory is the largest sum of PSS (each shared page counted once) over the kernel, its forkserver and all
ranks, looked at five times a second."""

import os
import threading
import time

import nbformat
import psutil
from nbclient import NotebookClient
from helpers.course.syllabus.outline import beside, notebooks, number_of

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}  # at most, for torch and oneDNN
CELL, CORE = 20, 40  # seconds with AVX2 that a cell of a lesson, and a lesson without its companion, may take


def proportional_memory(process):
    """Bytes of PSS of a process and everything below it."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.Error:  # it has just ended
            pass
    return total


class Meter(NotebookClient):
    """Executes a notebook; notes the seconds of every cell and the memory of all its processes."""

    peak, finished = 0, False

    def watch(self):
        while not self.finished:
            if (
                self.km is not None
                and getattr(self.km, "provisioner", None)
                and getattr(self.km.provisioner, "pid", None)
            ):
                try:
                    self.peak = max(self.peak, proportional_memory(psutil.Process(self.km.provisioner.pid)))
                except psutil.NoSuchProcess:
                    pass
            time.sleep(0.2)

    def measure(self, variables):
        """Seconds of all, with further environment variables for the kernel and its ranks."""
        started, starts, self.cells = time.monotonic(), {}, {}
        self.on_cell_start = lambda cell, cell_index: starts.update({cell_index: time.monotonic()})
        self.on_cell_executed = self.note(starts)
        watcher = threading.Thread(target=self.watch)
        watcher.start()
        try:
            self.execute(env=os.environ | variables)
        finally:
            self.finished = True
            watcher.join()
        return time.monotonic() - started

    def note(self, starts):
        def done(cell, cell_index, **reply):
            self.cells[cell_index] = time.monotonic() - starts[cell_index]

        return done


def measured(path, variables):
    """(seconds of a notebook, {cell: seconds}, bytes of memory)."""
    place = {"metadata": {"path": str(path.parent)}}
    notebook = nbformat.read(path, as_version=4)
    meter = Meter(notebook, timeout=600, kernel_name="python3", resources=place)
    return meter.measure(variables), meter.cells, meter.peak


def too_long(lesson, seconds, cells):
    """What of a lesson takes longer than it may, in words."""
    slow = [f"{lesson} takes {seconds:.0f} s, and may take {CORE}"] if seconds > CORE else []
    return slow + [f"{lesson}, cell {at}: {cells[at]:.0f} s of {CELL}" for at in cells if cells[at] > CELL]


def main():
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    lessons, slow = notebooks(), []
    print(f"{'lesson':32}{'seconds':>8}{'AVX2':>8}{'slowest cell':>16}{'peak memory':>14}")
    for path in [*lessons, *beside()]:
        seconds, _, peak = measured(path, {})
        slower, cells, _ = measured(path, AVX2)
        slowest = max(cells, key=cells.get)
        cell = f"{cells[slowest]:.0f} s (cell {slowest})"
        print(
            f"{number_of(path):32}{seconds:>8.0f}{slower:>8.0f}{cell:>16}{peak / 1e9:>11.2f} GB", flush=True
        )
        slow += too_long(number_of(path), slower, cells) if path in lessons else []
    print(f"longer than it may take with AVX2: {'; '.join(slow) or 'nothing'}")


if __name__ == "__main__":
    main()
