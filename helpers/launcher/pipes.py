"""The pipes between the kernel and each rank, by name: its report, what it writes, and its stack when it is asked."""

PIPES = ("report", "output", "stacks")
