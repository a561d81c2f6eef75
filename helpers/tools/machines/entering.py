"""A program on a machine: a process that enters the machine and becomes the program (`Machines.start`)."""

from __future__ import annotations

import os
import sys

from helpers.tools.launch.forked.processes import die_with_parent, enter


def main() -> None:
    """Arguments: descriptors of the machine's namespaces, divided by commas; then the program and its
    arguments."""
    descriptors, *command = sys.argv[1:]
    folder = os.getcwd()
    enter(map(int, descriptors.split(",")))
    os.chdir(folder)
    die_with_parent()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
