"""What the `deepspeed` command starts for each rank on this machine."""

import sys

from ..cluster.remote import main

if __name__ == "__main__":
    main(sys.argv[-1], elsewhere=False)
