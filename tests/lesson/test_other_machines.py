"""Stored outputs of lessons, which come from one machine, hold elsewhere: on other processors; and where
machines of namespaces are not allowed."""

import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.tools.machines.namespaces import problem
from tests import nbval_options
from tests.machines.test_allowed import FORBIDDEN

pytestmark = pytest.mark.ranks
LEAST = {  # what torch, oneDNN and MKL take of a processor, and threads of a kernel and of each rank
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "1",
}
GREATEST = {  # a thread that waits actively would take a core from what runs beside it
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    "OMP_NUM_THREADS": "4",
    "OMP_WAIT_POLICY": "passive",
}
ALL_OF_IT = {"TESTS_END": "inf"}  # however late it is in a run that must end in time
# of the lessons that train, those whose numbers differ most; the greatest is close to the machine whose
# outputs are stored, so the one with most arithmetic tells enough
CASES = {
    "least-00": (LEAST, "00_start_here"),
    "least-02": (LEAST, "02_training_memory"),
    "least-10": (LEAST, "10_zero_init_and_checkpoints"),
    "greatest-02": (GREATEST, "02_training_memory"),
}


@pytest.mark.skipif(
    not nbval_options.is_strict(), reason="outputs are compared in the pinned environment only"
)
@pytest.mark.parametrize("processor, lesson", CASES.values(), ids=CASES)
def test_a_lesson_with_other_arithmetic(processor, lesson):
    done = subprocess.run(
        nbval(f"notebooks/{lesson}.ipynb"),
        cwd=ROOT,
        env=os.environ | processor | ALL_OF_IT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:]


def nbval(lesson):
    options = [
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=600",
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
        [sys.executable, "-c", inside],
        cwd=ROOT,
        env=os.environ | ALL_OF_IT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
