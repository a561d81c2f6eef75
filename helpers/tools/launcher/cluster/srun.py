"""Ranks under `srun`, on the machines of a cluster that Slurm manages."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING

from ...place import NAME
from ...whole import shown, whole
from ..failures import LaunchError
from .guard import call
from .shared_job import SharedJob

if TYPE_CHECKING:
    from pathlib import Path

    from ..parcel import Parcel

MISSING = (
    'launcher="slurm" needs Slurm\'s commands, and {} {} not found: open the notebook on a '
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


class SlurmJob(SharedJob):
    """A job under a name of its own, also where the notebook runs inside a job already.  `options` are more
    options of `srun`; None is left out."""

    name = "srun command"

    def __init__(
        self,
        payload: Parcel,
        ranks: int,
        device: str,
        nodes: int,
        gpus: int | None = None,
        folder: str | Path | None = None,
        **options: str | int | None,
    ) -> None:
        super().__init__(payload, ranks, device, folder)
        self.options = {"nodes": nodes, "ntasks": ranks, "ntasks-per-node": ranks // nodes, **options}
        self.options["gpus-per-node"] = gpus

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


def check(ranks: int, cluster: dict[str, object]) -> dict[str, object]:
    """The arguments of a job, as `SlurmJob` takes them, checked before anything is submitted."""
    nodes = 1 if cluster["nodes"] is None else whole(cluster["nodes"], "nodes", 1, MOST_NODES)
    gpus = None if cluster["gpus"] is None else whole(cluster["gpus"], "gpus", 1, MOST_GPUS)
    if ranks % nodes:
        raise ValueError(f"{ranks} ranks cannot be dealt evenly to {nodes} nodes: use a multiple of {nodes}")
    time = cluster["time"]
    if time is not None and not (DURATION.fullmatch(str(time)) and re.search("[1-9]", str(time))):
        raise ValueError(
            'time must be minutes, or as "01:30:00" (hours, minutes, seconds) or "1-12:00:00", and more than '
            f"nothing, not {shown(time)}"
        )
    for name in ("account", "partition"):
        value = cluster[name]
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise ValueError(f"{name} must be a name that the cluster knows, not {shown(value)}")
    if missing := [name for name in ("srun", "scancel", "squeue") if not shutil.which(name)]:
        raise LaunchError(MISSING.format(", ".join(missing), "is" if len(missing) == 1 else "are"))
    return {**cluster, "nodes": nodes, "gpus": gpus}
