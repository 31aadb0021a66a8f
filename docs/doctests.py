"""For the site: docstrings as Markdown, doctests as code that can be pasted, and formulas between dollars."""

import doctest
import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"(?:^|\n\n)((?:>>> .*\n?)(?:.+(?:\n|$))*)")
_FENCED = re.compile(r"^```python\n(>>> .*?)^```$", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r":(?:class|func|meth|mod):`")  # Sphinx's way to name things; Markdown has backticks
_FORMULA = re.compile(r":math:`([^`]*)`")
_BLOCK = re.compile(r"^\.\. math:: *((?:.+(?:\n|$))(?:[ ]+.+(?:\n|$))*)", re.MULTILINE)


def pasteable(session: str) -> str:
    r"""A doctest as code without prompts; what it prints as comments.

    >>> print(pasteable(">>> if True:\n...     print(1)\n1\n>>> 2\n2"))
    if True:
        print(1)
    # 1
    2
    # 2
    """
    lines = list[str]()
    for part in doctest.DocTestParser().parse(session):
        if isinstance(part, doctest.Example):
            want = part.want or (f"{part.exc_msg}" if part.exc_msg else "")
            lines += [*part.source.splitlines(), *(f"# {line}".rstrip() for line in want.splitlines())]
        else:
            lines += part.splitlines()
    return "\n".join(lines).strip("\n")


def fenced(text: str) -> str:
    r"""Doctests, each from its first prompt to the next empty line, as code between fences.

    >>> print(fenced("Adds.\n\n>>> 1 + 1\n2"))
    Adds.
    <BLANKLINE>
    ```python
    1 + 1
    # 2
    ```
    """
    text = _BLOCK.sub(lambda found: f"$${' '.join(found[1].split())}$$\n", text)
    text = _FORMULA.sub(lambda found: f"${' '.join(found[1].split())}$", text)
    text = _ROLE.sub("`", text)
    return _DOCTEST.sub(lambda found: f"\n\n```python\n{pasteable(found[1])}\n```\n", text).strip("\n")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What MkDocs calls for every page: blocks of doctests become code that can be pasted."""
    return _FENCED.sub(lambda found: f"```python\n{pasteable(found[1])}\n```", markdown)


class Doctests(griffe.Extension):
    """Rewrites docstrings as they are collected."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Fence the doctests of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
