"""The kernel's forkservers, one per device: processes in which torch and DeepSpeed are imported already."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from ...place import run_main
from ..environment import server_environment
from ..failures import LaunchError
from ..pipes import end_of
from .forkserver import receive, send

if TYPE_CHECKING:
    from ..progress import Progress

SERVER = run_main("launcher.forked.forkserver")
# of the forkserver only: importing must start no thread
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
IDLE = 600.0  # seconds without a launch after which a forkserver, some 300 MB, ends by itself


class Forkserver:
    """The kernel's end of `helpers/tools/launcher/forked/forkserver.py`."""

    def __init__(self, device: str) -> None:
        self.ready, self.preloaded = False, set()
        main_thread = threading.current_thread() is threading.main_thread()
        with ExitStack() as kept, ExitStack() as handed_over:  # what is kept closes if it cannot be started
            self.socket, control = socket.socketpair()
            kept.callback(self.socket.close)
            handed_over.callback(control.close)
            life, self.life = os.pipe()
            kept.callback(os.close, self.life)
            handed_over.callback(os.close, life)
            handed = (control.fileno(), life)
            self.log = kept.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                [sys.executable, "-Pc", SERVER, *map(str, (*handed, int(main_thread), IDLE))],
                env={**os.environ, **server_environment(device), **ONE_THREAD},
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, pass_fds=handed,
                cwd="/",  # the kernel's folder may be removed, and libraries look for themselves there
                start_new_session=True,  # an interrupt of the kernel's process group does not reach it
            )  # fmt: skip
            kept.pop_all()

    def receive(self) -> dict:
        try:
            message, _ = receive(self.socket)
        except ConnectionError:  # it was killed with a message unread
            message = None
        if message is None:
            raise LaunchError(
                f"the forkserver has ended; the next launch starts a new one\n{end_of(self.log)}".rstrip()
            )
        return message

    def reply(self, progress: Progress) -> dict:
        """Its next message, waited for; an interrupt may come meanwhile."""
        while not wait([self.socket], 0.1):
            progress.tick()
        return self.receive()

    def warm_up(self, progress: Progress) -> None:
        """Wait until torch and DeepSpeed are imported.  An interrupt leaves the import going on for the next
        launch."""
        if self.ready:
            return
        progress.say("first launch of this kernel: importing torch and DeepSpeed once (about 10 s)")
        message = self.reply(progress)
        if message["kind"] == "failed":
            raise LaunchError(f"torch and DeepSpeed could not be imported:\n{message['reason']}")
        self.ready = True

    def preload(self, names: Iterable[str], progress: Progress) -> None:
        """Import what a notebook asked for and this server has not tried yet."""
        if not (new := [name for name in names if name not in self.preloaded]):
            return
        self.preloaded.update(new)  # what fails is said once; a rank that needs it says more
        progress.say(f"importing {', '.join(new)} once for all ranks to come")
        path = [os.path.abspath(entry) for entry in sys.path]
        send(self.socket, kind="preload", names=new, path=path)
        for name, reason in self.reply(progress)["failed"].items():
            why = reason.strip().splitlines()[-1]
            print(f"note: {name} could not be imported before the ranks start: {why}")

    def stop_ranks(self) -> bool:
        """Kill what is left of a job and wait until it is gone.  Returns whether the forkserver has answered,
        and so is well."""
        try:
            self.socket.settimeout(5)
            send(self.socket, kind="stop")
            while self.receive()["kind"] != "stopped":
                pass
            self.socket.settimeout(None)
        except (OSError, LaunchError, ValueError):
            return False
        return True

    def let_go(self) -> None:
        """Close what leads to it."""
        os.close(self.life)
        self.socket.close()

    def close(self) -> None:
        """End the forkserver and, with it, every rank."""
        self.let_go()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


# Beside the names below the one sanctioned piece of module state, by device.
_forkservers: dict[str, Forkserver] = {}
_preloaded: list[str] = []  # what this kernel asked for, in order


def preload(*names: str) -> None:
    """Import libraries once for all ranks of the launches to come.

    Args:
        names: modules, or what is looked up in them, since large libraries import their parts on demand:
            "peft", "transformers.Trainer".

    Raises:
        ModuleNotFoundError: a library is not installed.
    """
    for name in names:
        if importlib.util.find_spec(library := name.partition(".")[0]) is None:
            raise ModuleNotFoundError(f"{library} is not installed here: there is nothing to preload")
    _preloaded.extend(name for name in names if name not in _preloaded)


def begin_warming(device: str) -> Forkserver:
    """The forkserver of a device, started if there is none; its imports go on by themselves."""
    if device not in _forkservers:
        _forkservers[device] = Forkserver(device)
    return _forkservers[device]


def warm(device: str, progress: Progress) -> Forkserver:
    """The forkserver of a device, all imports done.  One that was started before and has died, or dies while
    it is waited for, is replaced."""
    if earlier := _forkservers.get(device):
        well = False
        with suppress(LaunchError):
            earlier.warm_up(progress)
            well = earlier.stop_ranks()
        if not well:
            forget(device)
    server = begin_warming(device)
    try:
        server.warm_up(progress)
        server.preload(_preloaded, progress)
    except BaseException as error:
        # an interrupted start goes on; a reply to `preload` that nobody reads would be taken for the next
        if server.ready or isinstance(error, LaunchError):
            forget(device)
        raise
    return server


def forget(device: str) -> None:
    _forkservers.pop(device).close()


def forget_in_child() -> None:
    """In a forked child of the kernel: the forkservers answer its parent alone, and end with the parent."""
    while _forkservers:
        _forkservers.popitem()[1].let_go()


os.register_at_fork(after_in_child=forget_in_child)
