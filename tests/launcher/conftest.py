"""Real processes, real faults.  After every test the next launch works and nothing is left but the idle
forkserver.

Temporary files and the cache of compiled extensions lie in folders of this session's own.
"""

import fcntl
import os
import signal
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import cloudpickle
import pytest
from helpers import DeepSpeedCommand, launch
from helpers.tools import sources
from helpers.tools.launcher.forked import forkservers
from tests.launcher import support
from tests.launcher.support import MARK, REPOSITORY, Kernel, all_reduced, remains

cloudpickle.register_pickle_by_value(support)  # ranks do not import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="session", autouse=True)
def marked_session(tmp_path_factory):
    """Environment and temporary folder of all that is started here; a forkserver of other tests would lack
    the mark.

    Interrupts mean what they mean in a terminal, also where a shell has started the tests in the background,
    and so with SIGINT ignored.
    """
    before = dict(os.environ), tempfile.tempdir, signal.signal(signal.SIGINT, signal.default_int_handler)
    name, _, value = MARK.partition("=")
    folder = tmp_path_factory.mktemp("launcher")
    for part in ("temporary", "extensions"):
        (folder / part).mkdir()
    os.environ |= {
        name: value,
        "TMPDIR": str(folder / "temporary"),
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
    }
    tempfile.tempdir = None
    try:
        from jupyter_core.utils import ensure_event_loop

        # else the first test that talks to Jupyter is the one that opens it, and so three descriptors
        ensure_event_loop()
    except ImportError:
        pass
    for device in list(forkservers._forkservers):
        forkservers.forget(device)
    sources._imported.clear()  # an edit of a helper while the tests run does not change what they read
    launch(lambda: None, ranks=1, device="cpu")
    yield
    for device in list(forkservers._forkservers):
        forkservers.forget(device)
    os.environ.clear()
    os.environ.update(before[0])
    tempfile.tempdir = before[1]
    signal.signal(signal.SIGINT, before[2])


@pytest.fixture(autouse=True)
def alone_with_shared_memory(request, tmp_path_factory):
    """All test processes see one /dev/shm: tests that leave something there run while no other test looks."""
    leaves = request.node.path.name == "test_left_behind.py"
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with open(folder / "shared-memory.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if leaves else fcntl.LOCK_SH)
        yield


@pytest.fixture(autouse=True)
def nothing_is_left(marked_session, alone_with_shared_memory):
    """The next launch in this kernel works, and everything is as it was before the test."""
    before = remains()
    yield
    assert launch(lambda: os.environ["RANK"], ranks=2) == ["0", "1"]
    assert support.remains_like(before) == before
    assert len(before["processes"]) == 1 and "forkserver" in before["processes"][0]


@pytest.fixture
def kernels(tmp_path):
    """Start kernels: `kernels(number, **environment)`; they are closed at the end."""
    opened = []

    def start(number=1, directory=REPOSITORY, **environment):
        for _ in range(number):
            folder = tmp_path / f"kernel-{len(opened)}"
            folder.mkdir()
            opened.append(Kernel(folder, directory, **environment))
        return opened[-number:]

    yield start
    for kernel in opened:
        kernel.close()


@pytest.fixture(scope="session")
def commanded(marked_session):
    """One job of the real `deepspeed` command, which takes long to start: its reports and what it printed."""
    import torch

    carried = torch.ones(400_000)  # 1.6 MB, which lie beside the pickle

    def job():
        total = all_reduced(float(os.environ["RANK"]))
        print("rank", os.environ["RANK"], "writes")
        folder = Path(sys.argv[-1])
        listening = support.listening_addresses()
        modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
        interfaces = [os.environ[name] for name in support.INTERFACES]
        carried.add_(int(os.environ["RANK"]))
        found = {
            "total": total,
            "folder": folder.name,
            "modes": modes,
            "listening": listening,
            "interfaces": interfaces,
        }
        return found | {"carried": carried, "started": support.start_in_a_session_of_its_own()}

    with redirect_stdout(StringIO()) as printed, pytest.MonkeyPatch.context() as patch:
        for name in support.INTERFACES:
            patch.setenv(
                name, support.interface_of_the_network() or "lo"
            )  # as the environment of a cluster may say
        reports = launch(job, ranks=2, on=DeepSpeedCommand(show=True), device="cpu")
    return reports, printed.getvalue()
