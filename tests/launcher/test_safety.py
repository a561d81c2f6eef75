"""A job cannot be reached from another machine, nor read by another user of this one."""

import sys

import cloudpickle
import pytest
from helpers import launch
from tests.launcher.support import INTERFACES, LOOPBACK, interface_of_the_network, listening_addresses

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_ranks_listen_on_loopback_only():
    reports = launch(listening_addresses, ranks=4)
    assert all(reports)  # every rank listens for the others: the test would see an address
    assert {address for report in reports for address in report} <= LOOPBACK


def test_a_cluster_in_the_environment_does_not_put_ranks_on_the_network(kernels):
    network = interface_of_the_network() or pytest.skip("this machine has no network interface")
    (kernel,) = kernels(**dict.fromkeys(INTERFACES, network))
    reports = kernel.run(
        "from helpers import launch\nfrom tests.launcher.support import "
        "listening_addresses\nvalue = list(launch(listening_addresses, 2))"
    )
    assert all(reports)
    assert {address for report in reports for address in report} <= LOOPBACK
