"""Builds the site from this folder and the notebooks' stored outputs, without executing any and offline.

python docs/build.py            # build/site/html/index.html
python docs/build.py --page 07  # and build/site/07_zero_1.html, one lesson as one file that needs no other
"""

from __future__ import annotations

import argparse
import base64
import mimetypes
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urljoin

from sphinx.cmd.build import build_main
from helpers.course.syllabus.addresses import urls
from helpers.course.syllabus.numbers import FIRST_EDITION
from helpers.paths import MORE

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PUBLISHED = urls().get("Documentation", "html/")  # else the site that is built beside it
STYLE = re.compile(r'<link rel="stylesheet"[^>]* href="([^"?]+)[^"]*"[^>]*>')
SCRIPT = re.compile(r'<script (?:defer="defer" )?src="([^"?]+)[^"]*"></script>')
MOVED = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>This lesson has moved</title>
<link rel="canonical" href="{page}"><script>location.replace("{page}" + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={page}"></noscript></head>
<body><p>This lesson has <a href="{page}">another number now</a>.</p></body></html>
"""
LINK = re.compile(r'(<(?:a|link rel="(?!style)[a-z]+") [^>]*href=)"(?!#|https?:|data:)([^"]+)"')
PICTURE = re.compile(r'(<img [^>]*src=)"((?!data:)[^"]+)"')


def build(folder: Path) -> Path:
    """Build the site in a folder and return where its pages are; a warning ends the program with status 1."""
    sources, html = folder / "source", folder / "html"
    for old in (sources, html):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(DOCS, sources, ignore=shutil.ignore_patterns("extensions", "*.py", "__pycache__"))
    shutil.copytree(ROOT / "notebooks", sources / "notebooks")
    options = [
        "--quiet",
        "--jobs",
        "auto",
        "--fail-on-warning",
        "--keep-going",
        "--color",
        "--conf-dir",
        str(DOCS),
    ]
    if status := build_main([*options, str(sources), str(html)]):
        sys.exit(status)
    lead_on(html)
    return html


def lead_on(html: Path) -> None:
    """Let the first edition's addresses lead to where these lessons are now, section and all."""
    for old, new in FIRST_EDITION.items():
        for folder in (html / "notebooks", html / "notebooks" / MORE):
            (folder / f"{old}.html").write_text(MOVED.format(page=f"{new}.html"), encoding="utf-8")


def one_page(html: Path, lesson: str) -> Path:
    """Write a page of the built site with its styles, scripts and pictures inside; returns the new file.

    Links to other pages lead to the published site, or where there is none to the one beside it."""
    found = list((html / "notebooks").glob(f"*{lesson}_*.html" if lesson[0].isdigit() else f"*{lesson}.html"))
    if len(found) != 1:
        sys.exit(f"no lesson is called {lesson}: name a number as 07, or fsdp, claims, index")
    (page,) = found

    def read(match):
        return (page.parent / match[1]).read_text(encoding="utf-8")

    def picture(match):
        file = page.parent / match[2]
        data = base64.b64encode(file.read_bytes()).decode()
        return f'{match[1]}"data:{mimetypes.guess_type(file)[0]};base64,{data}"'

    text = PICTURE.sub(picture, page.read_text(encoding="utf-8"))
    text = LINK.sub(lambda match: f'{match[1]}"{urljoin(f"{PUBLISHED}notebooks/", match[2])}"', text)
    text = STYLE.sub(lambda match: f"<style>{read(match)}</style>", text)
    text = SCRIPT.sub(lambda match: f"<script>{read(match)}</script>", text)
    written = html.parent / page.name
    written.write_text(text, encoding="utf-8")
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--page", metavar="LESSON", help="write a lesson as one file too: 07, fsdp, claims, index"
    )
    parser.add_argument("--into", metavar="FOLDER", type=Path, default=ROOT / "build/site")
    options = parser.parse_args()
    pages = build(options.into)
    print(one_page(pages, options.page) if options.page else pages / "index.html")
