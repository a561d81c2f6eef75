"""What a lesson shows of several machines: made here where this system allows them, else what they gave
elsewhere.

A lesson goes on in both cases, with the same values.  Where machines are allowed, `python tests/refresh.py
18` writes down anew what is shown."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache
from importlib.metadata import version

from helpers.paths import RECORDED
from helpers.tools.launcher.failures import LaunchError
from helpers.tools.machines.namespaces import problem

Plain = dict | list | str | int | float | bool | None  # what JSON can say
RECORDING = "COURSE_RECORDS_MACHINES"  # set while a lesson is executed for its stored outputs
MARK = "○ recorded"  # such a line is not compared: tests/nbval_pictures.cfg


@cache
def machines_missing() -> str | None:
    """Why there are no machines here, one line; None where there are."""
    return problem()


class OnMachines:
    """Calls functions that make machines; where this system has none, says so in a line and returns what was
    recorded.

        on_machines = OnMachines("18")
        bytes_sent = on_machines(counted, place=[0, 0, 1, 1])

    Args:
        lesson: its number; the values lie in recorded/machines/NN.json.
        missing: a function that says what else is missing here, in a line, or None.
    """

    def __init__(self, lesson: str, missing: Callable[[], str | None] | None = None) -> None:
        self.file = RECORDED / "machines" / f"{lesson}.json"
        self.missing = missing or machines_missing

    def __call__(self, function: Callable, /, **arguments: object) -> Plain:
        """`function(**arguments)` as plain data (lists, dicts with text as keys, numbers, text), run here or
        recorded.

        Raises:
            LaunchError: it cannot run here, and was not recorded with these arguments.
        """
        name = key(function, arguments)
        content = json.loads(self.file.read_text()) if self.file.exists() else {"values": {}}
        if reason := self.missing():
            if name not in content["values"]:
                raise LaunchError(
                    f"{reason}; and {name} was not recorded, so there is nothing to show: keep to the "
                    "cell's own arguments"
                )
            print(f"{MARK} {content['label']}, since here {reason}")
            return content["values"][name]
        value = json.loads(json.dumps(function(**arguments), default=plain))
        if os.environ.get(RECORDING):
            versions = f"torch {version('torch').split('+')[0]}, DeepSpeed {version('deepspeed')}"
            content["label"] = f"{date.today()} on {platform.system()}, {os.cpu_count()} cores, {versions}"
            content["values"][name] = value
            self.file.parent.mkdir(exist_ok=True)
            self.file.write_text(json.dumps(content, indent=1) + "\n")
        return value


def key(function: Callable, arguments: Mapping[str, object]) -> str:
    """A function and its arguments in words."""
    words = [f"{name}={getattr(value, '__name__', repr(value))}" for name, value in sorted(arguments.items())]
    return f"{function.__name__}({', '.join(words)})"


def plain(value: object) -> dict:
    """For JSON: a dataclass as a dict."""
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)
    raise TypeError(f"a {type(value).__name__} cannot be recorded: return numbers, text, lists and dicts")
