"""A lesson's stored outputs, which come from an ordinary machine, hold on a CPU without vector instructions and with two threads per rank."""

import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from tests import nbval_options

pytestmark = pytest.mark.ranks


@pytest.mark.skipif(not nbval_options.is_strict(), reason="outputs are compared in the pinned environment only")
def test_a_lesson_with_other_arithmetic():
    machine = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=300",
        nbval_options.PICTURES,
        "-q",
        nbval_options.ON_ANOTHER_MACHINE,
    ]
    done = subprocess.run(command, cwd=ROOT, env=machine, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:]
