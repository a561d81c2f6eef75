"""Time and memory of every lesson and of what stands beside them: `python tests/benchmarks/lessons.py`
executes each and prints a table.

Memory is the largest sum of PSS (each shared page counted once) over the kernel, its forkserver and all
ranks, looked at five times a second."""

import threading
import time

import nbformat
import psutil
from nbclient import NotebookClient
from helpers.course.lesson.outline import beside, notebooks, number_of


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

    peak, slowest, finished = 0, (0.0, -1), False

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

    def measure(self):
        started, starts = time.monotonic(), {}
        self.on_cell_start = lambda cell, cell_index: starts.update({cell_index: time.monotonic()})
        self.on_cell_executed = self.note(starts)
        watcher = threading.Thread(target=self.watch)
        watcher.start()
        try:
            self.execute()
        finally:
            self.finished = True
            watcher.join()
        return time.monotonic() - started

    def note(self, starts):
        def done(cell, cell_index, **reply):
            self.slowest = max(self.slowest, (time.monotonic() - starts[cell_index], cell_index))

        return done


def main():
    print(f"{'lesson':32}{'seconds':>8}{'slowest cell':>16}{'peak memory':>14}")
    for path in [*notebooks(), *beside()]:
        meter = Meter(
            nbformat.read(path, as_version=4),
            timeout=600,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
        )
        seconds = meter.measure()
        cell = f"{meter.slowest[0]:.0f} s (cell {meter.slowest[1]})"
        print(f"{number_of(path):32}{seconds:>8.0f}{cell:>16}{meter.peak / 1e9:>11.2f} GB", flush=True)


if __name__ == "__main__":
    main()
