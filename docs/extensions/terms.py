"""The first time a page names a term of the glossary, the term becomes a link to it."""

import re

from docutils import nodes
from sphinx.addnodes import glossary, pending_xref
from sphinx.transforms import SphinxTransform

NOT_IN = (nodes.title, nodes.reference, nodes.literal, nodes.raw, nodes.math, glossary, pending_xref)
GLOSSARY = "glossary"


def terms_of(text: str) -> dict[str, re.Pattern]:
    """{a term as the glossary writes it: what finds it in a text, in the plural too}, the longest first."""
    block = re.search(r"```\{glossary\}\n(.*?)```", text, re.S)[1]
    found = [line.strip() for line in block.splitlines() if line and not line[0].isspace()]
    found.sort(key=len, reverse=True)
    return {term: re.compile(rf"\b{re.escape(term)}(?:s|es)?\b", re.I) for term in found}


class FirstUse(SphinxTransform):
    """Runs before references are resolved."""

    default_priority = 5

    def apply(self):
        name = self.env.docname
        if name == GLOSSARY or not name.startswith("notebooks/"):
            return
        left = dict(self.app.terms)
        for text in list(self.document.findall(nodes.Text)):
            if left and not any(isinstance(above, NOT_IN) for above in above_of(text, left)):
                link_first(text, left, name)


def above_of(node, terms):
    """The nodes around a node, from the inside; the quotes of code that is a term, as `no_sync`, are none."""
    if isinstance(node.parent, nodes.literal) and str(node) in terms:
        node = node.parent
    while node := node.parent:
        yield node


def link_first(text, left, name):
    """Link the first term of those `left` that a text names, and take it from them."""
    found = [(match.start(), term, match) for term, how in left.items() if (match := how.search(text))]
    if not found:
        return
    _, term, match = min(found, key=lambda one: one[0])
    del left[term]
    link = pending_xref("", refdomain="std", reftype="term", reftarget=term, refdoc=name, refexplicit=True)
    link += nodes.inline("", match[0], classes=["term"])
    rest = nodes.Text(text[match.end() :])
    text.parent.replace(text, [nodes.Text(text[: match.start()]), link, rest])
    link_first(rest, left, name)


def read_terms(app):
    app.terms = terms_of((app.srcdir / f"{GLOSSARY}.md").read_text())


def setup(app):
    app.connect("builder-inited", read_terms)
    app.add_transform(FirstUse)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
