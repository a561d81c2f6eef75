"""`Slurm(machines)`: a real Slurm on machines made of this one, up in a second, without root, munge or
control groups."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from ..whole import whole
from .daemons import Daemons, path_of
from .switch import name_of

if TYPE_CHECKING:
    from .namespaces import Machines

CLIENTS = ("srun", "sbatch", "salloc", "scancel", "sinfo", "squeue", "scontrol", "sattach")
# They stand for GPUs, which Slurm hands out by number and never opens.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
CONFIGURATION = """ClusterName=course
SlurmctldHost=machine0(10.77.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
EnforcePartLimits=ALL
KillWait=2
MinJobAge=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=machine[0-{last}] NodeAddr=10.77.0.[1-{count}] CPUs=8 RealMemory=4000 {gres} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm(Daemons):
    """Runs a real Slurm on `Machines`: its controller on machine 0, and a node on each.

    `launch(..., on=SlurmNodes(2))` uses it like that of a cluster.

        with Machines(2) as machines, Slurm(machines) as slurm:
            print(slurm.run("sinfo"))
            launch(function, ranks=4, on=SlurmNodes(2))

    Inside the block `srun`, `sbatch`, `scancel`, `squeue`, `sinfo` and `scontrol` mean this Slurm, in this
    process and in all that it starts (PATH says so), and run on machine 0.  It ends with the block, or with
    the notebook's kernel, and so do its jobs.

    Args:
        machines: `Machines` that are up.
        gpus: how many GPUs each node says it has, 0 to 4.  There are none: Slurm counts them, gives them out
            and sets `CUDA_VISIBLE_DEVICES` all the same.

    Attributes:
        folder: `Path` of its configuration and the logs of its daemons.

    Raises:
        TypeError, ValueError: an argument cannot be used, or the machines run a Slurm already.
        LaunchError: when the block is entered: a program is not installed, or a node does not come up.
    """

    name, whose = "a Slurm", "Slurm's "
    needed = ("slurmctld", "slurmd", "srun", "scancel", "sinfo")
    packages = "slurmctld slurmd slurm-client"

    def __init__(self, machines: Machines, gpus: int = 0) -> None:
        super().__init__(machines)
        self.gpus = whole(gpus, "the gpus of each node", 0, len(DEVICES))

    def commands(self) -> list[tuple[int, list[str], Path]]:
        count = self.machines.count
        text = CONFIGURATION.format(
            user=pwd.getpwuid(os.geteuid()).pw_name,
            folder=self.folder,
            last=count - 1,
            count=count,
            gres=f"Gres=gpu:{self.gpus}" if self.gpus else "",
        )
        (self.folder / "slurm.conf").write_text(text)
        if self.gpus:
            files = ",".join(DEVICES[: self.gpus])
            (self.folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={files}\n")
        (self.folder / "state").mkdir()
        options = ["-D", "-f", str(self.folder / "slurm.conf")]
        daemons = [(0, [path_of("slurmctld"), "-c", *options], self.folder / "slurmctld.out")]
        for machine in range(count):
            (self.folder / name_of(machine)).mkdir()
            command = [path_of("slurmd"), "-N", name_of(machine), *options]
            daemons.append((machine, command, self.folder / f"slurmd-{machine}.out"))
        return daemons

    def programs(self) -> dict[str, list[str]]:
        here = ["env", f"SLURM_CONF={self.folder}/slurm.conf"]
        return {name: [*here, path_of(name)] for name in CLIENTS if path_of(name)}

    def is_up(self) -> bool:
        self.said = self.run("sinfo", "--noheader", "--format=%D %T").strip()
        return self.said == f"{self.machines.count} idle"

    def complaints(self) -> str:
        """What sinfo said last, and the logs' last errors."""
        logs = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
        lines = [line for log in logs for line in log.read_text().splitlines()[-50:]]
        errors = [line for line in lines if re.search("error|fatal", line) and "pmi" not in line.lower()]
        return "\n".join([self.said, *errors[-12:]])

    def run(self, *command: str) -> str:
        """What one of Slurm's commands writes, errors included, as `slurm.run("sinfo", "--long")`."""
        if not self.folder:
            raise ValueError(
                "this Slurm is not up: use it inside `with Machines(2) as machines, Slurm(machines) as slurm`"
            )
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, **streams, text=True, timeout=120, check=False).stdout


problem = Slurm.problem
