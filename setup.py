"""Which modules are installed: by `pip install .`, as in a wheel, the tools alone, under a name of their own;
by `pip install -e .` the checkout as it lies here, course and all."""

import sys

from setuptools import find_packages, setup

NAME, TOOLS = "distributed_training_measured", "helpers/tools"

if "editable_wheel" in sys.argv:
    setup(packages=["helpers"], package_dir={"": "."})
else:
    setup(
        packages=[NAME, *(f"{NAME}.{package}" for package in find_packages(TOOLS))], package_dir={NAME: TOOLS}
    )
