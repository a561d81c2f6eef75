"""A rank that a command has started, and its keeper: the parent that writes what comes from the rank into
files of the job's folder.  It speaks with the rank through pipes, as the kernel does with one that it forked.

    python -m helpers.tools.launcher.cluster.remote FOLDER
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .. import rank as ranks
from ..forked.processes import (
    adopt_orphans,
    ask_where,
    die_with_parent,
    end_orphans,
    kill_group,
)
from ..outcome import KEPT_OUTPUT, Outcome
from ..pipes import ASK, PIPES
from ..ports import port_for
from . import orders

LOOK = 0.2  # seconds between two looks at the orders
UNSEEN = "launch: the folder {} cannot be written on {} ({})"


def of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """What torch and DeepSpeed expect in the environment, from what Slurm has put there."""
    ranks_here = int(re.match(r"\d+", environment["SLURM_STEP_TASKS_PER_NODE"])[0])
    nodes = nodes_of(environment["SLURM_STEP_NODELIST"])
    node = int(environment["SLURM_NODEID"])
    variables = {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment["SLURM_NTASKS"],
        "LOCAL_WORLD_SIZE": ranks_here,
        "LOCAL_SIZE": ranks_here,
        "GROUP_RANK": node,
        "CROSS_RANK": node,
        "CROSS_SIZE": len(nodes),
        "MASTER_ADDR": nodes[0],
        "MASTER_PORT": port_for(int(environment["SLURM_JOB_ID"])),
    }
    return {name: str(value) for name, value in variables.items()} | cards(environment, nodes, node)


def of_deepspeed(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What its launcher has not set; the folder holds the names of the machines."""
    hosts = [line.split()[0] for line in orders.patiently((folder / orders.HOSTFILE).read_text).splitlines()]
    local = {"LOCAL_WORLD_SIZE": environment["LOCAL_SIZE"]}
    return local | cards(environment, hosts, int(environment["CROSS_RANK"]))


def cards(environment: Mapping[str, str], hosts: Sequence[str], node: int) -> dict[str, str]:
    """Variables that name the network card towards the other machines, where the learner has not: gloo often
    chooses wrongly.  NCCL, which chooses the quickest itself, is left alone."""
    other = "localhost" if len(hosts) == 1 else hosts[1] if node == 0 else hosts[0]
    card = card_towards(other)
    names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {name: card for name in names if card and name not in environment}


def nodes_of(names: str) -> list[str]:
    """Names of the nodes in Slurm's short form, as machine[0-1]."""
    if "[" not in names:
        return names.split(",")
    return subprocess.run(
        ["scontrol", "show", "hostnames", names], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


def card_towards(host: str) -> str | None:
    """The network card through which a machine is reached, None where that cannot be told."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        towards = probe.getsockname()[0]
        import psutil

        for name, addresses in psutil.net_if_addrs().items():
            if any(address.address == towards for address in addresses):
                return name
    return None


class Keeper:
    """Keeps one rank, its child: writes what the rank sends into the job's files, and obeys orders."""

    def __init__(self, rank: int, folder: Path, number: str, readers: Iterable[int]) -> None:
        self.rank, self.folder, self.number = rank, folder, number
        self.readers, self.orders = dict(zip(readers, PIPES)), orders.Reader()
        self.told, self.stopped, self.looked = 0, False, 0.0
        self.room = KEPT_OUTPUT // int(os.environ.get("WORLD_SIZE", 1)) // 2  # bytes that are written at once
        self.late = Outcome(int(number), most=self.room)  # what comes after them, written at the end

    def file(self, name: str) -> Path:
        return self.folder / f"{name}-{self.number}"

    def note(self, line: str) -> None:
        orders.give(self.file("notes"), line)

    def keep(self) -> None:
        """Until it is told to stop: write what comes, note how the rank ends, and obey."""
        ended = False
        try:
            while not self.stopped:
                ready, _, _ = select.select(list(self.readers), [], [], 0.1)
                for reader in ready:
                    self.carry(reader)
                if not ended and not ready:
                    ended = self.look_after()
                self.obey()
            if self.late.output:
                orders.append(self.file("output"), self.late.text.encode())
        except OSError:  # the kernel has gone, and the folder
            pass
        kill_group(self.rank)
        end_orphans()

    def carry(self, reader: int) -> None:
        """What is in one pipe, into the file of its name."""
        name, part = self.readers[reader], os.read(reader, 1 << 20)
        if part:
            if name == "output":
                self.late.add(name, part[self.room :])
                part = part[: self.room]
                self.room -= len(part)
            orders.append(self.file(name), part, flush=name == "stacks")
            if name == "report" and part.startswith(ranks.AT_WORK):
                self.note(orders.AT_WORK)
            return
        del self.readers[reader]
        if name == "report":
            for written in ("report", "output"):
                orders.append(self.file(written), b"", flush=True)
            self.note(orders.REPORTED)

    def look_after(self) -> bool:
        """Note how the rank has ended, once it has and its pipes are empty.  Returns whether."""
        child, status = os.waitpid(self.rank, os.WNOHANG)
        if not child:
            return False
        if os.waitstatus_to_exitcode(status) == -signal.SIGTERM:
            time.sleep(0.5)  # the end of a job is sent to the keeper too, which then notes nothing
        if not self.stopped:
            kill_group(self.rank)
            end_orphans()
            self.note(f"{orders.ENDED} {os.waitstatus_to_exitcode(status)} {time.time()}")
        return True

    def obey(self) -> None:
        if time.monotonic() - self.looked < LOOK:
            return
        self.looked = time.monotonic()
        lines = self.orders.lines(self.folder / orders.ORDERS)
        for order in lines[self.told :]:
            if order == orders.STACKS:
                with suppress(ProcessLookupError):
                    ask_where(self.rank, *ASK)
            self.stopped |= order == orders.STOP
        self.told = max(self.told, len(lines))


def main(folder: str, elsewhere: bool = True) -> None:
    """The process that a launcher has started becomes the keeper, and its child the rank.  `elsewhere`: on a
    machine that may be another than the kernel's, and whose launcher has not set all that torch expects."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the kernel alone decides what an interrupt means
    for number in ASK:
        signal.signal(number, signal.SIG_IGN)  # asks the rank where it stands
    adopt_orphans()
    folder, machine = Path(folder), os.uname().nodename
    try:
        if elsewhere:
            of_deepspeeds = "CROSS_RANK" in os.environ
            os.environ |= of_deepspeed(os.environ, folder) if of_deepspeeds else of_slurm(os.environ)
        number = os.environ["RANK"]
        payload = orders.patiently(os.open, folder / "payload", os.O_RDONLY)
        values = orders.patiently(os.open, folder / f"values-{number}", os.O_RDWR)
        if elsewhere:
            orders.give(folder / f"notes-{number}", f"{orders.ON} {machine}")
    except OSError as error:
        sys.exit(UNSEEN.format(folder, machine, error.strerror))
    pipes, keeper = [os.pipe() for _ in PIPES], os.getpid()
    if rank := os.fork():
        for _, writer in pipes:
            os.close(writer)
        kept = Keeper(rank, folder, number, [reader for reader, _ in pipes])
        signal.signal(signal.SIGTERM, lambda *signal: setattr(kept, "stopped", True))
        kept.keep()
        os._exit(0)
    os.setpgid(0, 0)
    die_with_parent()
    if os.getppid() != keeper:
        return
    report, output, stacks = (writer for _, writer in pipes)
    os.dup2(output, 1)
    os.dup2(output, 2)
    ranks.run(payload, report, stacks, values=values)


if __name__ == "__main__":
    main(sys.argv[-1])
