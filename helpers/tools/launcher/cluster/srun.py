"""Ranks under `srun`, on the machines of a cluster that Slurm manages."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from ...place import NAME
from ...whole import shown, whole
from ..arguments import check_types
from ..failures import LaunchError
from .guard import call
from .shared_job import SharedJob

if TYPE_CHECKING:
    from pathlib import Path

    from ..parcel import Parcel

MISSING = (
    "`SlurmNodes` needs Slurm's commands, and {} {} not found: open the notebook on a "
    "machine of the cluster from which jobs are submitted, "
    "or make a cluster: `with Machines(2) as machines, Slurm(machines): launch(...)`"
)
# Inside of a job all other variables of Slurm are about that job.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
MOST_NODES, MOST_GPUS = 64, 1024
DURATION = re.compile(r"(\d+-)?\d+(:\d\d){0,2}", re.ASCII)
VARIES = re.compile(
    r" AT \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|^srun: Job step aborted: .*\n|^srun: job \d+ (queued|has been).*\n",
    re.M,
)


@dataclass(frozen=True)
class SlurmNodes:
    """Nodes of a cluster that Slurm manages, asked for with `srun`:
    `launch(function, ranks=8, on=SlurmNodes(2, gpus=4))`.

    What is left out is the cluster's own default.

    Args:
        nodes: how many.
        gpus: how many on each; without, ranks run on the CPU.
        account: at whose cost.
        partition: where.
        time: for how long at most: minutes, or text such as "00:10:00".
        folder: one that this machine and all nodes see at the same place, for the job's files; the current by
            default.
        show: print the command line.

    Raises:
        TypeError, ValueError: a setting cannot be used.
    """

    nodes: int = 1
    _: KW_ONLY
    gpus: int | None = None
    account: str | None = None
    partition: str | None = None
    time: str | int | None = None
    folder: str | Path | None = None
    show: bool = False

    def __post_init__(self) -> None:
        words = {"account": self.account, "partition": self.partition}
        check_types(**words, time=self.time, folder=self.folder, show=self.show)
        object.__setattr__(self, "nodes", whole(self.nodes, "nodes", 1, MOST_NODES))
        if self.gpus is not None:
            object.__setattr__(self, "gpus", whole(self.gpus, "gpus", 1, MOST_GPUS))
        time = self.time
        if time is not None and not (DURATION.fullmatch(str(time)) and re.search("[1-9]", str(time))):
            raise ValueError(
                'time must be minutes, or as "01:30:00" (hours, minutes, seconds) or "1-12:00:00", and more '
                f"than nothing, not {shown(time)}"
            )
        for name, value in words.items():
            if value is not None and not value.strip():
                raise ValueError(f"{name} must be a name that the cluster knows, not {shown(value)}")

    def job(self, payload: Parcel, ranks: int, device: str | None) -> SlurmJob:
        """A job on these nodes, or an error that says what is missing; nothing is submitted yet."""
        if ranks % self.nodes:
            raise ValueError(
                f"{ranks} ranks cannot be dealt evenly to {self.nodes} nodes: use a multiple of {self.nodes}"
            )
        if missing := [name for name in ("srun", "scancel", "squeue") if not shutil.which(name)]:
            raise LaunchError(MISSING.format(", ".join(missing), "is" if len(missing) == 1 else "are"))
        return SlurmJob(payload, ranks, device or ("cuda" if self.gpus else "cpu"), self)


class SlurmJob(SharedJob):
    """A job under a name of its own, also where the notebook runs inside a job already."""

    name = "srun command"

    def __init__(self, payload: Parcel, ranks: int, device: str, on: SlurmNodes) -> None:
        super().__init__(payload, ranks, device, on.folder)
        self.options = {
            **{"nodes": on.nodes, "ntasks": ranks, "ntasks-per-node": ranks // on.nodes},
            **{"account": on.account, "partition": on.partition, "time": on.time, "gpus-per-node": on.gpus},
        }

    def words(self) -> list[str]:
        title = self.path.name.removeprefix(".")
        self.cancel = ["scancel", f"--name={title}"]
        self.remaining = ["squeue", "--noheader", f"--name={title}"]
        options = [f"--{name}={value}" for name, value in self.options.items() if value is not None]
        # The launcher finds out which rank failed, not srun.
        quiet = [f"--job-name={title}", "--kill-on-bad-exit=0", "--mpi=none"]
        module = [sys.executable, "-P", "-m", f"{NAME}.launcher.cluster.remote", str(self.path)]
        return ["srun", *options, *quiet, *module]

    def variables(self) -> dict[str, str]:
        variables = super().variables()
        if "SLURM_JOB_ID" in variables:
            dropped = {name for name in variables if name.startswith("SLURM_") and name not in KEPT}
            variables = {name: variables[name] for name in variables.keys() - dropped}
        return variables

    def state(self) -> str:
        """As CANCELLED or TIMEOUT: srun may end before the line that says so has reached it."""
        state = call([*self.remaining, "--states=all", "--format=%T"]).decode().strip()
        return state and f" (Slurm: {state})"

    def told(self, text: str) -> str:
        return VARIES.sub("", super().told(text))
