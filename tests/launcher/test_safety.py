"""A job cannot be reached from another machine, nor read by another user of this one."""

import sys

import cloudpickle
import pytest
from helpers import launch
from tests.launcher.support import INTERFACES, interface_of_the_network, listening_addresses

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, ::1, ::ffff:127.0.0.1


def test_ranks_listen_on_loopback_only():
    reports = launch(listening_addresses, ranks=4)
    assert all(reports)  # every rank listens for the others: the test would see an address
    assert {address for report in reports for address in report} <= LOOPBACK


def test_a_cluster_in_the_environment_does_not_put_ranks_on_the_network(kernels):
    network = interface_of_the_network() or pytest.skip("this machine has no network interface")
    (kernel,) = kernels(**dict.fromkeys(INTERFACES, network))
    reports = kernel.run(
        "from helpers import launch\nfrom tests.launcher.support import listening_addresses\nvalue = list(launch(listening_addresses, 2))"
    )
    assert all(reports)
    assert {address for report in reports for address in report} <= LOOPBACK


def test_the_command_too_names_loopback(commanded):
    loopback = "lo" if sys.platform.startswith("linux") else "lo0"
    for report in commanded[0]:
        assert report["interfaces"] == [loopback] * 3
    assert set(commanded[0][1]["listening"]) <= LOOPBACK  # rank 0 also serves the command's own port


def test_the_private_folder_of_the_command(commanded):
    reports, _ = commanded
    for report in reports:
        modes = report["modes"]
        assert modes.pop(report["folder"]) == 0o700
        assert modes["payload"] == 0o600
        assert set(modes.values()) == {0o600}
