"""Real processes from a notebook cell: `launch(function, ranks=4)`.  `jobs.launch` is the way in; the other
modules are one step of it each."""
