"""Rehearsals are tested with the versions of torch that they are written for."""

import pytest
from helpers.rehearsal.rehearsing import RehearsalError, check_torch


@pytest.fixture(scope="session", autouse=True)
def new_enough():
    try:
        check_torch()
    except RehearsalError as reason:
        pytest.skip(str(reason))
