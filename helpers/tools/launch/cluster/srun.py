"""Ranks under `srun`, on the machines of a cluster that Slurm manages."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING

from helpers.tools.launch.cluster.guard import call
from helpers.tools.launch.cluster.shared_job import SharedJob
from helpers.tools.launch.failures import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.tools.launch.parcel import Parcel

MISSING = (
    'launcher="slurm" needs Slurm\'s commands, and {} {} not found: open the notebook on a '
    "machine of the cluster from which jobs are submitted, "
    "or make a cluster: `with Machines(2) as machines, Slurm(machines): launch(...)`"
)
KEPT = (
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JWT",
)  # of an environment inside of a job, all else is about that job
VARIES = re.compile(
    r" AT \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|^srun: Job step aborted: .*\n|^srun: job \d+ (queued|has been).*\n",
    re.M,
)


class SlurmJob(SharedJob):
    """A job of its own under a name of its own, also where the notebook runs inside a job already."""

    name = "srun command"

    def __init__(
        self,
        payload: Parcel,
        ranks: int,
        device: str,
        nodes: int,
        gpus: int | None = None,
        account: str | None = None,
        partition: str | None = None,
        time: str | int | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(payload, ranks, device, folder)
        options = {"account": account, "partition": partition, "time": time, "gpus-per-node": gpus}
        self.options = {"nodes": nodes, "ntasks": ranks, "ntasks-per-node": ranks // nodes} | {
            name: value for name, value in options.items() if value
        }

    def words(self) -> list[str]:
        title = self.path.name.removeprefix(".")
        self.cancel = ["scancel", f"--name={title}"]
        self.remaining = ["squeue", "--noheader", f"--name={title}"]
        options = [f"--{name}={value}" for name, value in self.options.items()]
        quiet = [
            f"--job-name={title}",
            "--kill-on-bad-exit=0",
            "--mpi=none",
        ]  # who failed is found out here, not by srun
        return [
            "srun",
            *options,
            *quiet,
            sys.executable,
            "-P",
            "-m",
            "helpers.tools.launch.cluster.remote",
            str(self.path),
        ]

    def variables(self) -> dict[str, str]:
        variables = super().variables()
        inside = "SLURM_JOB_ID" in variables
        return {
            name: value
            for name, value in variables.items()
            if not (inside and name.startswith("SLURM_") and name not in KEPT)
        }

    def state(self) -> str:
        """As CANCELLED or TIMEOUT.  srun may end before the line that says so has reached it; nothing is
        known of a job that was refused."""
        state = call([*self.remaining, "--states=all", "--format=%T"]).decode().strip()
        return state and f" (Slurm: {state})"

    def told(self, text: str) -> str:
        return VARIES.sub("", super().told(text))


def check(ranks: int, nodes: int, gpus: int | None, time: str | int | None) -> None:
    """What can be told before anything is submitted.

    Raises:
        TypeError, ValueError: an argument cannot be used.
        LaunchError: there is no Slurm.
    """
    for name, value in (("nodes", nodes), ("gpus", gpus)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
        if value is not None and value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")
    if ranks % nodes:
        raise ValueError(f"{ranks} ranks cannot be dealt evenly to {nodes} nodes: use a multiple of {nodes}")
    if time is not None and not re.fullmatch(r"(\d+-)?\d+(:\d\d){0,2}", str(time)):
        raise ValueError(
            f'time must be minutes, or as "01:30:00" (hours, minutes, seconds) or "1-12:00:00", not {time!r}'
        )
    if missing := [name for name in ("srun", "scancel", "squeue") if not shutil.which(name)]:
        raise LaunchError(MISSING.format(", ".join(missing), "is" if len(missing) == 1 else "are"))
