"""A job on machines where they are allowed, and what it returned on another system where they are not."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

from helpers.machines.machines import Machines, problem

FILE = Path(__file__).with_name("stored.json")
STORE = "STORE_MACHINES"  # set in the environment, the next runs are stored

reason = functools.cache(problem)


def on_machines(name, function, ranks, arguments=None, *, count=2, bandwidth=None, timeout=300.0):
    """`launch(function, ranks)` on machines of its own: what each rank returned; where machines are not allowed, what is stored under this name.

    Args:
        name: of the stored run.
        function: as for `launch`; it takes `machines` too, and returns what JSON can hold.
        arguments: its other keyword arguments.
        count, bandwidth: as for `Machines`.

    Raises:
        KeyError: machines are not allowed here, and nothing is stored under this name.
    """
    from helpers.launcher.jobs import launch

    if words := reason():
        print(f"not run here, but stored: {words}")
        return stored()[name]
    with Machines(count, bandwidth) as machines:
        reports = list(launch(function, ranks, {**(arguments or {}), "machines": machines}, place=machines, timeout=timeout))
    if os.environ.get(STORE):
        FILE.write_text(json.dumps({**stored(), name: reports}, indent=1, sort_keys=True) + "\n")
    return json.loads(json.dumps(reports))


def stored():
    return json.loads(FILE.read_text()) if FILE.exists() else {}
