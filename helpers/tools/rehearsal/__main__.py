"""`python -m helpers.tools.rehearsal`: the command, which stands in the room above."""

import sys

from ..forecast.command_line import main

if __name__ == "__main__":
    sys.exit(main())
