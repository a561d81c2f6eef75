"""Where each rank of a job on machines runs."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..launcher.forked.forked_job import Doors
from .switch import CARD, address_of, doors_to

if TYPE_CHECKING:
    from contextlib import ExitStack

    from .namespaces import Machines

ORDERS = "MACHINES_ORDERS"  # the variable that tells a rank the descriptor of the socket of orders


@dataclass(frozen=True)
class Placement:
    """Where each rank of a job runs.

    Attributes:
        machines: the `Machines`.
        of: list, for each rank the number of its machine.
    """

    machines: Machines
    of: list[int]

    def doors(self, opened: ExitStack) -> Doors:
        """For a new job: `Doors` to the machines, with a socket on the card of rank 0's.  Everything closes
        with `opened`, an ExitStack."""
        _, (listener, *namespaces) = self.machines.ask("job", machine=self.of[0])
        for namespace in namespaces:
            opened.callback(os.close, namespace)
        listener = opened.enter_context(socket.socket(fileno=listener))
        of = [doors_to(machine) for machine in self.of]
        return Doors(listener, of, [*namespaces, self.machines.orders.fileno()], {ORDERS: len(namespaces)})

    def variables(self) -> dict[str, str]:
        """Variables of all ranks: they meet at the card of rank 0's machine, and talk through their own."""
        cards = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), CARD)
        return {**cards, "MASTER_ADDR": address_of(self.of[0])}

    def variables_of(self, rank: int) -> dict[str, str]:
        """Variables of one rank, as `deepspeed` (CROSS_, LOCAL_) and `torchrun` (GROUP_RANK) set them;
        machines without a rank are not counted."""
        machine, used = self.of[rank], sorted(set(self.of))
        here, node = self.of.count(machine), used.index(machine)
        numbers = {
            "LOCAL_RANK": self.of[:rank].count(machine),
            "LOCAL_WORLD_SIZE": here,
            "LOCAL_SIZE": here,
            "GROUP_RANK": node,
            "CROSS_RANK": node,
            "CROSS_SIZE": len(used),
        }
        return {name: str(number) for name, number in numbers.items()}
