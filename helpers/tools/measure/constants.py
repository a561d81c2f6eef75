"""What limits this machine, measured in a few seconds: the constants that `helpers.tools.theory.step_seconds`
and `plots.roofline` take.

    from helpers.tools.measure.constants import constants

    machine = launch(constants, ranks=2)[0]

Every rank measures while all others do, with the threads that it has in a launch: what a rank can count on,
not what one process alone could.  Rates are medians of repetitions with random numbers (zeros cost a
processor less power); they vary with what else runs.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ..theory import MachineConstants, matrix_flops

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LAUNCHES = 300  # bare operators that are issued one after another
PROBE_LAYERS = 50  # of the model that calls are timed with
PROBE_OPERATORS = 6  # of each layer, a linear map and a GELU: forward 2, backward 4
REPETITIONS = 5  # of an all-reduce, after one that warms up


@dataclass(frozen=True)
class Effort:
    """Says how large the measurements of `constants` are.

    Each shows its limit, and all together take a few seconds.
    """

    tokens: int  # rows of what a linear layer is given
    sizes: tuple[int, ...]  # its n channels; it has 4 n results
    vector: int  # bytes of a tensor that fits in no cache
    attention: tuple[int, int, int, int]  # batch, heads, tokens, channels of a head
    messages: tuple[int, ...]  # bytes
    seconds: float  # of each measurement


EFFORTS = {
    "cpu": Effort(
        tokens=512,
        sizes=(64, 128, 256, 512),
        vector=2**27,
        attention=(1, 4, 256, 64),
        messages=(2**10, 2**14, 2**18, 2**22, 2**24),
        seconds=0.15,
    ),
    "cuda": Effort(
        tokens=8192,
        sizes=(512, 1024, 2048, 4096, 8192),
        vector=2**30,
        attention=(8, 16, 1024, 64),
        messages=(2**10, 2**16, 2**20, 2**24, 2**28),
        seconds=0.3,
    ),
}


def constants(dtypes: tuple[str, ...] = ("bf16", "fp32"), effort: Effort | None = None) -> MachineConstants:
    """Measure this rank's device in 3 to 5 seconds, and the connection to the others where there are several:
    a function for `launch`.

    Args:
        dtypes: "bf16", "fp32" or both.
        effort: sizes of the measurements; by default those for the device.

    Raises:
        ValueError: for a dtype that is not known here.
    """
    if unknown := [name for name in dtypes if name not in DTYPES]:
        raise ValueError(f"dtypes must be among {', '.join(DTYPES)}; not {', '.join(map(str, unknown))}")
    on_gpu = os.environ.get("DS_ACCELERATOR") == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    effort = effort or EFFORTS[device.type]
    latency, bandwidth = 0.0, None
    if (ranks := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        latency, bandwidth = fit_latency_and_bandwidth(all_reduce_times(effort, device), ranks)
    matrix, odd, attention = {}, {}, {}
    for name in dtypes:
        rate = partial(linear_rate, dtype=DTYPES[name], effort=effort, device=device)
        matrix[name] = {n: rate(n, 4 * n) for n in effort.sizes}
        if on_gpu:
            odd[name] = rate(effort.sizes[-2], 4 * effort.sizes[-2] + 1)
        attention[name] = attention_rate(DTYPES[name], effort, device)
    return MachineConstants(
        name=torch.cuda.get_device_name(device) if on_gpu else _processor(),
        matrix=matrix,
        memory=memory_bandwidth(effort, device),
        launch=launch_seconds(effort, device),
        call=call_seconds(effort, device),
        latency=latency,
        bandwidth=bandwidth,
        attention=attention,
        misaligned=odd,
        asynchronous=on_gpu,
    )


def linear_rate(
    channels: int, results: int, dtype: torch.dtype, effort: Effort, device: torch.device
) -> float:
    """FLOPs per second of a linear layer's three products: result, input's gradient, weight's gradient."""
    inputs = torch.randn(effort.tokens, channels, device=device, dtype=dtype)
    weight = torch.randn(results, channels, device=device, dtype=dtype)

    def products():
        result = inputs @ weight.T
        result @ weight
        result.T @ inputs

    return 3 * matrix_flops(effort.tokens, channels, results) / _seconds(products, effort, device)


def attention_rate(dtype: torch.dtype, effort: Effort, device: torch.device) -> float:
    """FLOPs per second of torch's fused causal attention, forward and backward, half of the scores counted.

    2 products forward and 5 backward, each of b a s^2 d multiply-adds, halved (Dao et al., FlashAttention,
    arXiv 2205.14135, appendix B).
    """
    batch, heads, tokens, channels = effort.attention
    inputs = torch.randn(3, *effort.attention, device=device, dtype=dtype, requires_grad=True)
    gradient = torch.randn(*effort.attention, device=device, dtype=dtype)
    parts = inputs.unbind()

    def both():
        result = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        torch.autograd.grad(result, parts, gradient)

    return 7 * batch * heads * tokens**2 * channels / _seconds(both, effort, device)


def memory_bandwidth(effort: Effort, device: torch.device) -> float:
    """Bytes per second read and written while two large tensors are added into a third."""
    left, right = (torch.randn(effort.vector // 4, device=device) for _ in range(2))
    result = torch.empty_like(left)
    return 3 * effort.vector / _seconds(lambda: torch.add(left, right, out=result), effort, device)


def launch_seconds(effort: Effort, device: torch.device) -> float:
    """Seconds that the host, which does not wait for a GPU, needs for one operator on a tiny tensor, without
    autograd."""
    numbers, ones = (torch.ones(8, device=device) for _ in range(2))

    def operators():
        for _ in range(LAUNCHES):
            numbers.add_(ones)

    return _seconds(operators, effort, device, wait=False) / LAUNCHES


def call_seconds(effort: Effort, device: torch.device) -> float:
    """Seconds that the host needs for one operator of a model's passes, Python's calls of modules and
    autograd's bookkeeping included: forward and backward of many tiny layers, over the operators in them."""
    layers = [layer for _ in range(PROBE_LAYERS) for layer in (torch.nn.Linear(8, 8), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to(device)
    inputs, gradient = torch.randn(1, 8, device=device, requires_grad=True), torch.ones(1, 8, device=device)

    def both():
        for parameter in (inputs, *model.parameters()):
            parameter.grad = None
        model(inputs).backward(gradient)

    return _seconds(both, effort, device, wait=False) / (PROBE_LAYERS * PROBE_OPERATORS)


def all_reduce_times(effort: Effort, device: torch.device) -> dict[int, float]:
    """{bytes: seconds of an all-reduce of so many among all ranks}; every rank must call it."""
    import deepspeed
    import deepspeed.comm as comm

    if not comm.is_initialized():
        deepspeed.init_distributed()
    times = {}
    for size in effort.messages:
        message, series = torch.zeros(size // 4, device=device), []
        count = max(1, min(10, 2**23 // size))  # the same on every rank
        for _ in range(REPETITIONS + 1):  # the first one is for warming up
            comm.barrier()
            started = _moment(device)
            for _ in range(count):
                comm.all_reduce(message)
            series.append((_moment(device) - started) / count)
        times[size] = statistics.median(series[1:])
    return times


def fit_latency_and_bandwidth(times: Mapping[int, float], ranks: int) -> tuple[float, float]:
    """Fit latency (alpha, seconds) and bandwidth (1 / beta, bytes per second) to measured times of a ring.

    The ring sends 2 (N - 1) messages; least squares on relative errors.

    Hockney, "The communication challenge for MPP" (1994); the ring as in `theory.collective_seconds`.  Where
    the latency would be negative it is 0, and where larger messages took no longer the bandwidth is what the
    largest reached, latency and all.

    Args:
        times: {bytes of an all-reduced tensor: seconds}, two sizes or more.
        ranks: N, that took part.

    Raises:
        ValueError: for fewer than two sizes or ranks.
    """
    if len(times) < 2 or ranks < 2:
        raise ValueError(f"a fit needs at least two sizes and two ranks, not {len(times)} and {ranks}")
    messages = 2 * (ranks - 1)
    sizes, seconds = (np.array(list(each), dtype=float) for each in (times, times.values()))
    slope, latency = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    if latency < 0:
        rates = sizes / seconds
        slope, latency = rates.sum() / (rates**2).sum(), 0.0
    if slope <= 0:
        slope, latency = times[max(times)] / max(times), 0.0
    return float(latency / messages), float(messages / ranks / slope)


def _processor():
    try:
        with open("/proc/cpuinfo") as file:
            name = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or "CPU"
    return f"{name}, {torch.get_num_threads()} thread(s)"


def _moment(device):
    """The clock, once the device has done what was queued for it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _seconds(work: Callable, effort: Effort, device: torch.device, wait: bool = True) -> float:
    """Seconds of one call: the median of ten series of calls, each long enough for the clock; fewer where the
    work is slow."""
    timer = timeit.Timer(work, setup=gc.enable, timer=partial(_moment, device) if wait else time.perf_counter)
    timer.timeit(1)  # warms up
    once = max(timer.timeit(1), 1e-6)
    count = max(1, min(100, round(effort.seconds / 10 / once)))
    series = max(2, min(10, round(4 * effort.seconds / (once * count))))
    return statistics.median(timer.repeat(series, count)) / count
