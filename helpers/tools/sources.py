"""The text of these modules as this process imported them, beside the files as they are now."""

from __future__ import annotations

import hashlib
import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType

from .place import OURS

_imported: dict[str, tuple[Path, bytes]] = {}  # by name: a module's file, and the digest of what it held


class Recorder:
    """Stands first on `sys.meta_path`, where Python asks for every module that it imports or reloads."""

    @staticmethod
    def find_spec(
        name: str, path: list[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{OURS}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.has_location:
            _imported[name] = Path(spec.origin), digest(Path(spec.origin))
        return spec


def digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest() if file.exists() else b""


def record() -> None:
    """From now on remember the text of every module of this package when it is imported."""
    sys.meta_path.insert(0, Recorder)


def changed() -> list[str]:
    """Names of the files whose text is another than the one that this process imported or reloaded last."""
    return sorted({file.name for file, then in _imported.values() if file.exists() and digest(file) != then})
