"""A lesson's stored outputs, which come from an ordinary machine, hold elsewhere: on a CPU without vector
instructions and with two threads per rank; and where machines of namespaces are not allowed."""

import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.tools.machines.namespaces import problem
from tests import nbval_options
from tests.machines.test_allowed import FORBIDDEN

pytestmark = pytest.mark.ranks


@pytest.mark.skipif(
    not nbval_options.is_strict(), reason="outputs are compared in the pinned environment only"
)
def test_a_lesson_with_other_arithmetic():
    threads = {
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "passive",
    }  # a thread that waits actively takes a core from what runs beside it
    machine = {
        **os.environ,
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    } | threads  # torch, and what it computes with
    done = subprocess.run(
        nbval(nbval_options.ON_ANOTHER_MACHINE),
        cwd=ROOT,
        env=machine,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:]


def nbval(lesson):
    options = [
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=300",
        nbval_options.PICTURES,
        "-q",
        "-x",
    ]  # the first failure is the cause
    return [sys.executable, "-m", "pytest", *options, lesson]


@pytest.mark.skipif(
    not nbval_options.is_strict(), reason="outputs are compared in the pinned environment only"
)
def test_a_lesson_on_machines_where_there_are_none():
    if reason := problem():
        pytest.skip(reason)
    command = nbval("notebooks/18_clusters.ipynb")
    inside = FORBIDDEN.replace("print(problem())", f"assert problem()\nos.execv({command[0]!r}, {command!r})")
    done = subprocess.run(
        [sys.executable, "-c", inside], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
