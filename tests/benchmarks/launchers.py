"""From the start of a launch to its result: the course's launcher beside `deepspeed`, `torchrun` and
accelerate's `notebook_launcher`.

`python tests/benchmarks/launchers.py` prints a table.  Every figure is the median of a few runs; figures are
compared as ratios of one run of this program, since machines differ and are noisy.  The same two jobs
everywhere: (a) an empty function, (b) one ZeRO-1 bf16 step of the course's GPT with 0.2 million parameters.
Then large tensors to the ranks and back, beside the time of copying them; and the first launch of
a notebook that imported `launch` a while ago.
"""

import contextlib
import io
import os
import statistics
import subprocess
import sys
import time

import psutil


def empty():
    pass


def step():
    import deepspeed
    import deepspeed.comm as comm
    from helpers import corpus, models

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
        False  # what helpers.tools.launcher.rank does for every rank; else a compiler decides the time
    )
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 100_000},
    }
    model = models.build(models.GPT, models.TINY)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    ids, targets = corpus.batch(
        0, 2 * comm.get_world_size(), 64, comm.get_rank(), comm.get_world_size(), engine.device
    )
    engine.backward(engine(ids, targets))
    engine.step()


JOBS = {"empty": empty, "step": step}


def private_memory():
    """Bytes that a rank has for itself alone before it builds a model."""
    memory = psutil.Process().memory_full_info()
    return memory.uss


def run(*command):
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    started = time.perf_counter()
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
    return time.perf_counter() - started


def notebook_launcher(job, ranks):
    """As in a notebook: accelerate starts the processes from a Python that has imported nothing yet (it
    refuses otherwise on GPUs)."""
    imports = "from accelerate import notebook_launcher; from tests.benchmarks.launchers import JOBS"
    return run(sys.executable, "-c", f"{imports}; notebook_launcher(JOBS[{job!r}], num_processes={ranks})")


def others(job, ranks):
    binaries = os.path.dirname(sys.executable)
    return {
        "deepspeed": run(
            sys.executable, f"{binaries}/deepspeed", "--num_accelerators", str(ranks), __file__, job
        ),
        "torchrun": run(
            sys.executable, f"{binaries}/torchrun", "--nproc_per_node", str(ranks), __file__, job
        ),
        "notebook_launcher": notebook_launcher(job, ranks),
    }


def seconds(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def large():
    """Tensors of 100 to 800 MB to two ranks and back, beside torch's copy of one in this process.  The launch
    itself is part of the time."""
    import torch
    from helpers import launch

    print(f"\n{'MB':>6}{'copy':>10}{'to two ranks':>22}{'back from two ranks':>24}")
    for size in (100, 200, 400, 800):
        elements = size * 250_000
        tensor = torch.ones(elements)
        copy, there, back = [], [], []
        with contextlib.redirect_stdout(io.StringIO()):  # the note that much is carried
            for _ in range(4):
                copy.append(seconds(tensor.clone))
                there.append(seconds(lambda: launch(lambda: tensor[-1].item(), 2, device="cpu")))  # noqa: B023
                back.append(seconds(lambda: launch(lambda: torch.ones(elements), 2, device="cpu")))  # noqa: B023
        copy, there, back = (statistics.median(times[1:]) for times in (copy, there, back))
        print(
            f"{size:>6}{copy:>8.2f} s{there:>12.2f} s{there / copy:>6.1f} x{back:>14.2f} "
            f"s{back / copy:>6.1f} x",
            flush=True,
        )


def warmed():
    """The first launch of a Jupyter kernel, by the time since the cell that imported `launch`."""
    from jupyter_client import KernelManager

    print("\nfirst launch of a notebook, two empty ranks")
    for wait in (0, 2, 5, 10):
        manager = KernelManager()
        manager.start_kernel(cwd=os.getcwd())
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=60)

        def cell(code):
            client.execute_interactive(code, timeout=120, output_hook=lambda message: None)  # noqa: B023

        imported = seconds(lambda: cell("from helpers import launch"))  # noqa: B023
        time.sleep(wait)
        launched = seconds(lambda: cell("launch(lambda: None, 2)"))  # noqa: B023
        print(f"  {wait:>2} s after an import that took {imported:.1f} s: {launched:.2f} s", flush=True)
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main():
    from helpers import launch

    started = time.perf_counter()
    launch(empty, ranks=2)
    print(f"first launch of a script, which started nothing before: {time.perf_counter() - started:.1f} s")
    print(
        "private memory of a rank before it builds a model: "
        f"{max(launch(private_memory, ranks=4)) / 1e6:.0f} MB\n"
    )
    print(f"{'job':6}{'ranks':>6}{'launch':>10}{'deepspeed':>22}{'torchrun':>22}{'notebook_launcher':>22}")
    warm = {}
    for job, function in JOBS.items():
        for ranks in (2, 4, 8):
            launch(function, ranks=ranks, device="cpu")
            ours = warm[job, ranks] = statistics.median(
                launch(function, ranks=ranks, device="cpu").seconds for _ in range(5)
            )
            row = "".join(
                f"{seconds:>12.1f} s {seconds / ours:>6.0f} x" for seconds in others(job, ranks).values()
            )
            print(f"{job:6}{ranks:>6}{ours:>8.2f} s{row}", flush=True)
    for job in JOBS:
        print(f"{job}: 8 ranks take {warm[job, 8] / warm[job, 4]:.1f} times as long as 4")
    large()
    warmed()


if __name__ == "__main__":
    if "RANK" in os.environ:
        JOBS[sys.argv[-1]]()
    else:
        main()
