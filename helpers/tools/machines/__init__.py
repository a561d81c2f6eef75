"""Several machines on one: `with Machines(2) as machines: launch(function, ranks=4, on=machines)`, made of
Linux's namespaces, without root.

`machines` is the kernel's end; `switch` the process that holds them; `netlink` how it makes their cards;
`allowed` says why a system does not let it.  `slurm` and `ssh` are what clusters run, on these machines:
`daemons`, through `services` and `login`.  `export` writes a cell's function as a script for real machines.
"""
