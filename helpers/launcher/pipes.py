"""The pipes between the kernel and each rank, by name: its report, what it writes, and its stack when it is asked."""

PIPES = ("report", "output", "stacks")
AT_WORK = b"."  # the first byte of the report pipe: the rank has begun its function
