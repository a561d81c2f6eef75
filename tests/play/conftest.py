"""One browser for all figures; where there is no Chromium, tests that need it are skipped."""

import pytest
from tests.play.browser import CHROMIUM, browsing


@pytest.fixture(scope="session")
def browser():
    """See tests/play/browser.py."""
    if not CHROMIUM:
        pytest.skip("no Chromium: apt-get install chromium")
    with browsing() as one:
        yield one
