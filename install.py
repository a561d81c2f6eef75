"""Make `.venv` and install the pinned environment in it: what every verb of the Makefile does first, and
nothing where it is done.

Runs on any Python 3 with the standard library alone, so that a wrong version can be told before anything is
installed.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, ".venv")
STAMP = os.path.join(VENV, "installed")
OLDEST, NEWEST = (3, 11, 5), (3, 13)
TORCH = "torch==2.13.0"
ROOM = 1.5e9  # bytes that the environment takes at least
NEWS = "@jupyterlab/apputils-extension:announcements"
# PyTorch's public index of CPU builds: megabytes where CUDA takes gigabytes
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def fail(message):
    sys.exit("set-up: " + message)


def check_python():
    version = sys.version_info[:3]
    if version < OLDEST or version[:2] > NEWEST:
        found = ".".join(map(str, version))
        fail(
            f"Python {found} cannot run the course, which needs 3.11.5 to 3.13; name another: "
            "make lab PYTHON=python3.12"
        )


def check_folder():
    """Whether .venv can be made here: a folder that may be written, on a disk with room."""
    try:
        tempfile.TemporaryFile(dir=HERE).close()
    except OSError as error:
        cure = "clone the course into a folder of your own, and type the command there"
        cure = "make room, and try again" if error.errno == errno.ENOSPC else cure
        fail("nothing can be written to " + HERE + " (" + error.strerror + "): " + cure)
    free = shutil.disk_usage(HERE).free
    if not os.path.exists(VENV) and free < ROOM:
        words = (
            "the environment takes at least {:.1f} GB, and {:.1f} GB is free at {}: make room, and try again"
        )
        fail(words.format(ROOM / 1e9, free / 1e9, HERE))


def fingerprint():
    """Changes when the environment must be installed again; also when the checkout was moved, since a virtual
    environment knows its place."""
    digest = hashlib.sha256((sys.version + HERE).encode())
    for name in ("pyproject.toml", "constraints.txt", "install.py"):
        with open(os.path.join(HERE, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def installed():
    try:
        with open(STAMP) as file:
            return file.read() == fingerprint()
    except OSError:
        return False


def pip(*arguments):
    command = [os.path.join(VENV, "bin", "python"), "-m", "pip", "--disable-pip-version-check"]
    if not sys.stdin.isatty():
        command.append(
            "--no-input"
        )  # an index that wants a name and a password is passed over where nobody can type them
    return subprocess.call(command + ["install", "--quiet"] + list(arguments)) == 0


def answer(index):
    """What the index says within five seconds when it is asked for torch: "" where it has it, its refusal, or
    None; pip would try for minutes."""
    try:
        urllib.request.urlopen(index.rstrip("/") + "/torch/", timeout=5).close()
        return ""
    except urllib.error.HTTPError as refusal:
        return str(refusal.code) + " " + str(refusal.reason)
    except Exception:
        return None


def install_torch(constraints):
    """A CPU build where there is no GPU.  TORCH_INDEX= (empty) leaves the choice to pip's own
    configuration."""
    index = os.environ.get("TORCH_INDEX", TORCH_INDEX)
    if shutil.which("nvidia-smi") or sys.platform == "darwin" or not index:
        return pip("-c", constraints, TORCH)
    said = answer(index)
    if said is None:
        print(
            "set-up: "
            + index
            + " cannot be reached; looking for a CPU build where pip is configured to look",
            flush=True,
        )
        return pip("-c", constraints, TORCH + "+cpu")
    if said:  # pip may know a name and password, and looks where it is configured to look as well
        print(
            "set-up: "
            + index
            + " is there, but answered "
            + said
            + " when asked for torch; leaving it to pip",
            flush=True,
        )
    return pip("-c", constraints, "--extra-index-url", index, TORCH + "+cpu")


def main():
    check_python()
    if os.name != "posix":
        fail("Windows is supported through WSL2: run the same command in its Linux terminal")
    if installed():
        return
    check_folder()
    print("set-up: making .venv and installing the pinned environment, once (a few minutes)", flush=True)
    if subprocess.call([sys.executable, "-m", "venv", "--clear", VENV]) != 0:
        fail("Python's venv module is missing or broken; on Debian and Ubuntu: apt install python3-venv")
    constraints = os.path.join(HERE, "constraints.txt")
    if not install_torch(constraints):
        fail(
            "no CPU build of "
            + TORCH
            + " was found; name an index with TORCH_INDEX=..., or take pip's choice with TORCH_INDEX="
        )
    if not pip("-c", constraints, "-e", HERE + "[test]"):
        fail("pip could not install the environment; its message stands above")
    # JupyterLab would ask every learner whether it may fetch news over the network.
    subprocess.call(
        [os.path.join(VENV, "bin", "jupyter"), "labextension", "disable", "--level=sys_prefix", NEWS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with open(STAMP, "w") as file:
        file.write(fingerprint())


if __name__ == "__main__":
    main()
