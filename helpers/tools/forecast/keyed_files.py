"""Files of keys and values, in YAML or JSON."""

from __future__ import annotations

import json
from pathlib import Path

from ..rehearsal.refusing import BadQuestion


def read_keys(path: str | Path) -> dict:
    """The keys of a file in YAML or JSON.

    Raises:
        BadQuestion: the file cannot be read, is neither, or holds something else than keys.
    """
    import yaml

    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadQuestion(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
    try:
        keys = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        kind = "JSON" if isinstance(error, ValueError) else "YAML"
        raise BadQuestion(f"{path} is not {kind}: {' '.join(str(error).split())}") from None
    if not isinstance(keys, dict):
        raise BadQuestion(f"{path} should hold keys with values, and holds {type(keys).__name__}")
    return keys


def strict_json(value: str | dict) -> str | dict:
    """A configuration of DeepSpeed for Accelerate and transformers: their `HfDeepSpeedConfig` takes a file
    from the working directory and knows no comments.

    Raises:
        BadQuestion: there is no such file, or it is not JSON.
    """
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or not Path(value).is_file():
        here = "no file in the folder from which you ask"
        raise BadQuestion(f"the DeepSpeed configuration {value!r} is {here}: name one with --deepspeed")
    try:
        json.loads(Path(value).read_text())
    except ValueError as error:
        raise BadQuestion(f"{value} is not JSON, and Accelerate reads no comments: {error}") from None
    return value


def outvoted(option: str, value: object, other: object, where: str) -> list[str]:
    """A note, if an option of the command line was given and a file says something else."""
    if value is None or other is None or value == other:
        return []
    return [f"--{option} {value} counts more than {other} of {where}"]
