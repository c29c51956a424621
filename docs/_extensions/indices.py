"""Set indices and powers in prose, such as θ_PS, e_{t+1} and n^(−α), which are plain text in the source."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

# A single letter, with marks such as a tilde, or a norm, and its index. Names such as residual_cap are left alone.
_LETTER = r"(?<![A-Za-z_])([^\W\d_][\u0300-\u036f]*|[‖)])"
_INDEX = _LETTER + r"_(?:\{([^{}]+)\}|([A-Za-z0-9Α-ω]{1,4}|[∞⋆*])(?![A-Za-z0-9_]))"
_POWER = r"\^(?:\{([^{}]+)\}|\(((?:[^()]|\([^()]*\))+)\)|([−-]?[A-Za-z0-9Α-ω⋆*]+))"
_MARKS = re.compile(f"{_INDEX}|{_POWER}")
# Code, formulas, and names: parameters are bold.
_AS_THEY_ARE = (nodes.literal, nodes.FixedTextElement, nodes.math, nodes.raw, nodes.strong, addnodes.desc_signature)


def pieces(text):
    """Yield the text in pieces, with nodes for indices and powers."""
    done = 0
    for found in _MARKS.finditer(text):
        letter, *marks = found.groups()
        mark = next(filter(None, marks))
        kind = nodes.superscript if letter is None else nodes.subscript
        yield nodes.Text(text[done : found.start()] + (letter or ""))
        yield kind(mark, "", *pieces(mark))
        done = found.end()
    yield nodes.Text(text[done:])


class Indices(SphinxPostTransform):
    """Replace index and power marks in all text that is not code."""

    default_priority = 900

    def run(self, **options):
        """Transform a page; called by Sphinx."""
        for text in list(self.document.findall(nodes.Text)):
            node = text.parent
            while node is not None and not isinstance(node, _AS_THEY_ARE):
                node = node.parent
            if node is None and _MARKS.search(text):
                text.parent.replace(text, list(pieces(text.astext())))


def setup(app):
    """Register the transform; called by Sphinx."""
    app.add_post_transform(Indices)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
