"""For the site: formulas as MathML, which browsers draw by themselves, so that no script is needed."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def drawn(page: str) -> str:
    r"""A page with its formulas drawn.

    >>> drawn('<span class="arithmatex">\\(x\\)</span>')[:6]
    '<math '
    """
    page = _INLINE.sub(lambda found: convert(html.unescape(found[1])), page)
    return _BLOCK.sub(lambda found: convert(html.unescape(found[1]), display="block"), page)


def on_page_content(content: str, **_: Any) -> str:
    """What MkDocs calls for every page."""
    return drawn(content)
