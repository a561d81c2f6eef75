"""`Slurm(machines)`: a real Slurm on machines made of this one, up in a second, without root, munge or
control groups."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.tools.machines.daemons import Daemons, found, not_installed
from helpers.tools.machines.switch import address_of, name_of
from helpers.tools.whole import whole

if TYPE_CHECKING:
    from helpers.tools.machines.namespaces import Machines

DAEMONS = ("slurmctld", "slurmd")
CLIENTS = ("srun", "sbatch", "salloc", "scancel", "sinfo", "squeue", "scontrol", "sattach")
MISSING = (
    "Slurm's {} {} not installed here: on Debian and Ubuntu `apt install slurmctld slurmd "
    "slurm-client` brings what is needed"
)
# They stand for GPUs, which Slurm hands out by number and never opens.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
MOST_CPUS = 1024
GPUS = "AutoDetect=off\nName=gpu File={}\n"
CONFIGURATION = """ClusterName=course
SlurmctldHost={first}({address})
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
{nodes}PartitionName=all Nodes=ALL Default=YES State=UP
"""


def problem() -> str | None:
    """Why there can be no Slurm here, in one line; None where its programs are."""
    return not_installed((*DAEMONS, "srun", "scancel", "sinfo"), MISSING)


class Slurm(Daemons):
    """A Slurm on `Machines`: its controller on machine 0, a node on each; `launch(..., launcher="slurm")`
    uses it like that of a cluster.

        with Machines(2) as machines, Slurm(machines) as slurm:
            print(slurm.run("sinfo"))
            launch(function, ranks=4, launcher="slurm", nodes=2)

    Inside the block `srun`, `sbatch`, `scancel`, `squeue`, `sinfo` and `scontrol` mean this Slurm, in this
    process and in all that it starts (PATH and SLURM_CONF say so), and run on machine 0.  With the block, or
    with the notebook's kernel, it ends, and so do its jobs.

    Args:
        machines: `Machines` that are up.
        cpus: what each node says it has; a rank takes one.
        gpus: how many GPUs each node says it has, 0 to 4.  There are none: Slurm counts them, gives them out
            and sets `CUDA_VISIBLE_DEVICES`, as it does where there are.

    Attributes:
        folder: `Path` of its configuration and the logs of its daemons.

    Raises:
        TypeError, ValueError: an argument cannot be used, or the machines run a Slurm already.
        LaunchError: when the block is entered and its programs are not installed, or its nodes do not come
            up.
    """

    name = "a Slurm"
    problem = staticmethod(problem)

    def __init__(self, machines: Machines, cpus: int = 8, gpus: int = 0) -> None:
        super().__init__(machines)
        self.cpus = whole(cpus, "the cpus of each node", 1, MOST_CPUS)
        self.gpus = whole(gpus, "the gpus of each node", 0, len(DEVICES))

    def commands(self) -> list[tuple[int, list[str], Path]]:
        (self.folder / "slurm.conf").write_text(self.configuration())
        if self.gpus:
            (self.folder / "gres.conf").write_text(GPUS.format(",".join(DEVICES[: self.gpus])))
        (self.folder / "state").mkdir()
        options = ["-D", "-f", str(self.folder / "slurm.conf")]
        daemons = [(0, [found("slurmctld"), "-c", *options], self.folder / "slurmctld.out")]
        for machine in range(self.machines.count):
            (self.folder / name_of(machine)).mkdir()
            command = [found("slurmd"), "-N", name_of(machine), *options]
            daemons.append((machine, command, self.folder / f"slurmd-{machine}.out"))
        return daemons

    def login(self) -> tuple[dict[str, list[str]], dict[str, str]]:
        programs = {name: [found(name)] for name in CLIENTS if found(name)}
        return programs, {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def is_up(self) -> bool:
        self.said = self.run("sinfo", "--noheader", "--format=%D %T").strip()
        return self.said == f"{self.machines.count} idle"

    def configuration(self) -> str:
        each = f"CPUs={self.cpus} RealMemory=4000" + (f" Gres=gpu:{self.gpus}" if self.gpus else "")
        nodes = "".join(
            f"NodeName={name_of(machine)} NodeAddr={address_of(machine)} {each} State=UNKNOWN\n"
            for machine in range(self.machines.count)
        )
        user = pwd.getpwuid(os.geteuid()).pw_name
        return CONFIGURATION.format(
            first=name_of(0), address=address_of(0), user=user, folder=self.folder, nodes=nodes
        )

    def complaints(self) -> str:
        """What sinfo said last, and the last lines of every daemon's log that tell of an error."""
        logs = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
        lines = [line for log in logs for line in log.read_text().splitlines()[-50:]]
        errors = [
            line for line in lines if ("error" in line or "fatal" in line) and "pmi" not in line.lower()
        ]
        return "\n".join([self.said, *errors[-12:]])

    def run(self, *command: str, timeout: float = 120) -> str:
        """Run one of Slurm's commands on machine 0, like `slurm.run("sinfo", "--long")`: what it wrote,
        errors included."""
        if not self.folder:
            raise ValueError(
                "this Slurm is not up: use it inside `with Machines(2) as machines, Slurm(machines) as slurm`"
            )
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, **streams, text=True, timeout=timeout, check=False).stdout
