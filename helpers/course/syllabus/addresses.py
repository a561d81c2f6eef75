"""Where the course is published: `python -m helpers.course.syllabus.addresses` writes what follows from
`[project.urls]` of pyproject.toml between marks in README and docs.

Nothing is linked that leads nowhere: until Repository and Documentation are filled in, the texts say how to
build the site.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from helpers.paths import ROOT, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

MARKS = re.compile(r"(<!-- (\w+), from pyproject.toml -->\n).*?(<!-- end -->)", re.S)
ADDRESSES = ("Repository", "Documentation")
FILES = ("README.md", "docs/index.md", "docs/install.md", "docs/api/index.md")
BUILD = "`make site` builds its pages from the stored outputs, to read without running anything; begin at\n"
BUILD += "`build/site/html/index.html`."


def urls() -> Mapping[str, str]:
    """The addresses that are filled in: "Repository" and "Documentation", or none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return both_or_none(project.get("urls", {}))


def both_or_none(known: Mapping[str, str]) -> Mapping[str, str]:
    """Addresses as they are.

    Raises:
        ValueError: one is filled in without the other.
    """
    missing = [name for name in ADDRESSES if name not in known]
    if len(missing) == 1:
        raise ValueError(f"[project.urls] of pyproject.toml lacks {missing[0]}: fill in both, or neither")
    return known


def texts(known: Mapping[str, str]) -> dict[str, str]:
    """{name of a mark: what stands there}."""
    if not known:
        return {
            "online": BUILD,
            "clone": "In a clone of the course:",
            "package": "```sh\npip install .     # in a clone of the course\n```",
        }
    repository, site = (known[name] for name in ADDRESSES)
    path = urlsplit(repository).path
    binder = f"https://mybinder.org/v2/gh{path}/HEAD?urlpath=lab/tree/notebooks/index.ipynb"
    links = {"Read it online": site, "open it in Codespaces": f"https://codespaces.new{path}"}
    links["run it on Binder"] = binder
    return {
        "online": " ·\n".join(f"[{words}]({address})" for words, address in links.items()),
        "clone": f"In a clone, which `git clone {repository}` makes:",
        "package": f"```sh\npip install git+{repository}\n```",
    }


def written(text: str, known: Mapping[str, str]) -> str:
    """A text with what belongs between its marks."""
    said = texts(known)
    return MARKS.sub(lambda match: f"{match[1]}{said[match[2]].rstrip()}\n{match[3]}", text)


def main() -> None:
    for name in FILES:
        file = ROOT / name
        replace(file, written(file.read_text(encoding="utf-8"), urls()))


if __name__ == "__main__":
    main()
