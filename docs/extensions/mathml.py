"""Formulas as MathML, which browsers draw by themselves: no script, and no network."""

from latex2mathml.converter import convert


def inline(translator, node):
    translator.body.append(convert(node.astext()))


def block(translator, node):
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')


def nothing(translator, node):
    """`inline` and `block` have written all of it."""


def setup(app):
    app.add_html_math_renderer("mathml", (skipping(inline), nothing), (skipping(block), nothing))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def skipping(visit):
    """The same visit, which leaves the node's own text out."""

    def visited(translator, node):
        from docutils.nodes import SkipNode

        visit(translator, node)
        raise SkipNode

    return visited
