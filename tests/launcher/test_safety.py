"""A job cannot be reached from another machine, nor read by another user of this one."""

import os
import sys

import cloudpickle
from helpers import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, ::1, ::ffff:127.0.0.1
LISTEN = "0A"


def listening_addresses():
    """In a rank, in the middle of a job: the local addresses of its own listening sockets, as the kernel writes them."""
    import deepspeed
    import torch

    deepspeed.init_distributed()
    torch.distributed.all_reduce(torch.ones(8))
    torch.distributed.new_group([0, 1])
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # the descriptor of the listing itself
            pass
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as lines:
            rows = [line.split() for line in list(lines)[1:]]
        found += [row[1].partition(":")[0] for row in rows if row[3] == LISTEN and f"socket:[{row[9]}]" in own]
    torch.distributed.barrier()  # nobody leaves before all have looked
    return found


def test_ranks_listen_on_loopback_only():
    reports = launch(listening_addresses, ranks=4)
    assert all(reports)  # every rank listens for the others: the test would see an address
    assert {address for report in reports for address in report} <= LOOPBACK


def test_the_private_folder_of_the_command(commanded):
    reports, _ = commanded
    for report in reports:
        modes = report["modes"]
        assert modes.pop(report["folder"]) == 0o700
        assert modes["payload"] == 0o600
        assert set(modes.values()) == {0o600}
