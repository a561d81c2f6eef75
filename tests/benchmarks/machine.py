"""This machine's constants: `python tests/benchmarks/machine.py` prints what
`helpers.tools.measure.constants` measures with one rank and with two."""

import time


def main():
    from helpers import launch, theory
    from helpers.tools.measure.constants import constants

    for ranks in (1, 2):
        started = time.perf_counter()
        machine = launch(constants, ranks=ranks)[0]
        print(f"{ranks} rank(s), measured in {time.perf_counter() - started:.1f} s: {machine.name}")
        for dtype, rates in machine.matrix.items():
            ridge, attention = (
                theory.ridge(machine.peak(dtype), machine.memory),
                machine.attention_rate(dtype),
            )
            print(
                f"  {dtype}: "
                + ", ".join(f"width {n} {rate / 1e9:,.0f}" for n, rate in rates.items())
                + " GFLOP/s"
            )
            print(f"        ridge at {ridge:,.0f} FLOPs per byte; attention {attention / 1e9:,.0f} GFLOP/s")
            if dtype in machine.misaligned:
                print(f"        with an odd dimension {machine.misaligned[dtype] / 1e9:,.0f} GFLOP/s")
        print(
            f"  memory {machine.memory / 1e9:,.1f} GB/s; an operator {1e6 * machine.launch:.1f} "
            f"microseconds, in a model {1e6 * machine.call:.1f}"
        )
        if machine.bandwidth:
            print(
                f"  all-reduce: {1e6 * machine.latency:,.0f} microseconds and "
                f"{machine.bandwidth / 1e9:,.2f} GB/s per message"
            )


if __name__ == "__main__":
    main()
