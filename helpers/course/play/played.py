"""An output of a cell that can be played with: a picture, its sentence, its numbers, and what moves it."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent


class Played:
    """A figure to play with; the last expression of a cell displays it.

    Args:
        scripts: names of the files that move it, without ".js", after `common`.
        svg: the picture as it is at the start.
        sentence: what it says, with its key numbers.
        data: plain data for the scripts.
    """

    def __init__(self, scripts: str, svg: str, sentence: str, data: Mapping) -> None:
        self.scripts, self.svg, self.sentence, self.data = scripts.split(), svg, f"Figure: {sentence}", data

    @property
    def page(self) -> str:
        """The figure in HTML.  The image is its fallback: scripts put the same SVG into the page."""
        said, picture = html.escape(self.sentence), base64.b64encode(self.svg.encode()).decode()
        numbers = json.dumps(self.data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
        code = "\n".join((HERE / f"{name}.js").read_text() for name in ("common", *self.scripts))
        return (
            f'<figure class="play" style="margin: 0">'
            f'<img alt="{said}" src="data:image/svg+xml;base64,{picture}">'
            f'<figcaption style="font-size: smaller">{said}</figcaption>'
            f'<script type="application/json">{numbers}</script>'
            f"<style>{(HERE / 'play.css').read_text()}</style>"
            f"<script>(() => {{\n{code}\n}})();</script></figure>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": self.sentence, "text/html": self.page}
