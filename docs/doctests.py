"""For the site: docstrings as Markdown, doctests as blocks of code and formulas between dollars."""

import re

import griffe

_DOCTEST = re.compile(r"(?:^|\n\n)((?:>>> .*\n?)(?:.+(?:\n|$))*)")


_ROLE = re.compile(r":(?:class|func|meth|mod):`")  # Sphinx's way to name things; Markdown has backticks
_FORMULA = re.compile(r":math:`([^`]*)`")
_BLOCK = re.compile(r"^\.\. math:: *((?:.+(?:\n|$))(?:[ ]+.+(?:\n|$))*)", re.MULTILINE)


def fenced(text: str) -> str:
    r"""Doctests, each from its first prompt to the next empty line, between fences.

    >>> print(fenced("Adds.\n\n>>> 1 + 1\n2"))
    Adds.
    <BLANKLINE>
    ```python
    >>> 1 + 1
    2
    ```
    """
    text = _BLOCK.sub(lambda found: f"$${' '.join(found[1].split())}$$\n", text)
    text = _FORMULA.sub(lambda found: f"${' '.join(found[1].split())}$", text)
    text = _ROLE.sub("`", text)
    return _DOCTEST.sub(lambda found: f"\n\n```python\n{found[1].rstrip()}\n```\n", text).strip("\n")


class Doctests(griffe.Extension):
    """Rewrites docstrings as they are collected."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Fence the doctests of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
