"""The demo notebook is executed by `test_helpers_demo.py`; it is no lesson whose outputs are compared."""

from tests.play.conftest import browser as browser

collect_ignore_glob = ["*.ipynb"]
