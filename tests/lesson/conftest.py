"""The demo notebook is executed by `test_helpers_demo.py`; it is no lesson whose outputs are compared."""

collect_ignore_glob = ["*.ipynb"]
