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
import time
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


def tell(message):
    print("set-up: " + message, flush=True)


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
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "install.py"):
        with open(os.path.join(HERE, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def installed():
    try:
        with open(STAMP) as file:
            return file.read() == fingerprint()
    except OSError:
        return False


def pip(what, *arguments):
    """Whether pip installed something; meanwhile one line on a terminal says how far it is, and afterwards
    pip's errors stand there."""
    command = [os.path.join(VENV, "bin", "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["install", "--progress-bar=off"]
    began, found, said, step = time.time(), 0, [], "looking"
    process = subprocess.Popen(
        command + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    )
    for line in process.stdout:
        said.append(line)
        if line.startswith("Collecting "):
            found += 1
            step = f"{found} packages found"
        elif line.startswith("Installing collected"):
            step = f"installing {found} packages"
        show(f"set-up: {what}: {step}, {time.time() - began:.0f} s")
    show("")
    done = process.wait() == 0
    if not done:
        sys.stderr.write("".join(line for line in said if line.startswith(("ERROR", "error", "  ")))[-4000:])
    return done


def show(text):
    """One line, in the place of the one before, if somebody looks at a terminal."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r{text:<78}"[:79] + "\r" * (not text))
        sys.stdout.flush()


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
        return pip("PyTorch", "-c", constraints, TORCH)
    said = answer(index)
    if said is None:
        tell(index + " cannot be reached; looking for a CPU build where pip is configured to look")
        return pip("PyTorch", "-c", constraints, TORCH + "+cpu")
    if said:  # pip may know a name and password, and looks where it is configured to look as well
        tell(index + " is there, but answered " + said + " when asked for torch; leaving it to pip")
    return pip("PyTorch", "-c", constraints, "--extra-index-url", index, TORCH + "+cpu")


def main():
    check_python()
    if os.name != "posix":
        fail("Windows is supported through WSL2: run the same command in its Linux terminal")
    if installed():
        return
    check_folder()
    began = time.time()
    tell("making .venv and installing the pinned environment, once; it takes one to five minutes")
    if subprocess.call([sys.executable, "-m", "venv", "--clear", VENV]) != 0:
        fail("Python's venv module is missing or broken; on Debian and Ubuntu: apt install python3-venv")
    constraints = os.path.join(HERE, "constraints.txt")
    if not install_torch(constraints):
        cure = "name an index with TORCH_INDEX=..., or take pip's choice with TORCH_INDEX="
        fail("no CPU build of " + TORCH + " was found; " + cure)
    if not pip("all else", "-c", constraints, "-e", HERE + "[test]"):
        fail("pip could not install the environment; its message stands above")
    # JupyterLab would ask every learner whether it may fetch news over the network.
    subprocess.call(
        [os.path.join(VENV, "bin", "jupyter"), "labextension", "disable", "--level=sys_prefix", NEWS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with open(STAMP, "w") as file:
        file.write(fingerprint())
    tell(f"done in {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
