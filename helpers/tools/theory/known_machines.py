"""The constants of known cards, as `step_time` and rehearsals take them: recorded ones by
`helpers.tools.measure.constants`, others scaled by what their data sheets say.

Rates are by the size of a product, of attention by tokens x channels of a head.
"""

from __future__ import annotations

from dataclasses import replace

from .hardware import HARDWARE
from .roofline import MachineConstants

_H100 = MachineConstants(
    name="H100 80GB, recorded",  # one H100 80GB HBM3, torch 2.11
    matrix={
        "bf16": {512: 554e12, 1024: 655e12, 2048: 715e12, 4096: 661e12, 8192: 686e12},
        "fp32": {512: 48.6e12, 1024: 50.3e12, 2048: 51.0e12, 4096: 52.0e12, 8192: 52.4e12},
    },
    memory=3.04e12,
    launch=6.3e-6,
    call=23.6e-6,
    latency=26e-6,  # as of two H200
    bandwidth=HARDWARE["H100 80GB"]["NVLink"].value,
    attention={"bf16": {2**16: 225e12, 2**17: 313e12, 2**18: 393e12, 2**20: 497e12}, "fp32": 26.8e12},
    misaligned={"bf16": 134e12, "fp32": 51.4e12},
)
_H200 = replace(  # recorded/constants-2-NVIDIA-H200.json; attention with more tokens as an H100's
    _H100,
    name="H200, recorded",
    matrix={
        "bf16": {512: 551e12, 1024: 649e12, 2048: 669e12, 4096: 671e12, 8192: 675e12},
        "fp32": {512: 48.0e12, 1024: 50.3e12, 2048: 50.9e12, 4096: 52.0e12, 8192: 52.5e12},
    },
    memory=4.37e12,
    launch=8.6e-6,
    call=25.8e-6,
    bandwidth=HARDWARE["H200"]["NVLink"].value,
    misaligned={"bf16": 129e12, "fp32": 51.4e12},
)


def _assumed(name):
    """A card that reaches the same shares of its data sheet as an H100 does."""
    its, known = HARDWARE[name], HARDWARE["H100 80GB"]
    share, of_memory = (its[number].value / known[number].value for number in ("peak", "bandwidth"))

    def scaled(rates):
        return {key: scaled(rate) if isinstance(rate, dict) else share * rate for key, rate in rates.items()}

    return replace(
        _H100,
        name=f"{name}, assumed from its data sheet",
        matrix=scaled(_H100.matrix),
        memory=of_memory * _H100.memory,
        bandwidth=its["NVLink"].value,
        attention=scaled(_H100.attention),
        misaligned=scaled(_H100.misaligned),
    )


MACHINES = {  # by the names in `HARDWARE`
    "H100 80GB": _H100,
    "H200": _H200,
    "A100 80GB": _assumed("A100 80GB"),
    "A100 40GB": _assumed("A100 40GB"),
}
