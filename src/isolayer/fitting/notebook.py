"""The display of objects: one short line in a terminal, a small table in a notebook. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any


class NotebookForm:
    """Displays an object by a few facts, which ``_facts`` returns, and a picture, which ``_picture`` returns."""

    def _facts(self) -> dict[str, str]:
        raise NotImplementedError

    def _picture(self) -> str:
        """SVG to show above the table; nothing by default."""
        return ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(f'{name} {value}' for name, value in self._facts().items())}>"

    def _repr_html_(self) -> str:
        return html_form(type(self).__name__, self._facts(), self._picture())


def html_form(title: str, facts: Mapping[str, str], picture: str = "") -> str:
    """A title, a picture and a table of facts, as HTML; values are escaped.

    >>> html_form("Sums", {"rows": "<3"})
    '<div><strong>Sums</strong><table><tr><th style="text-align:left">rows</th><td>&lt;3</td></tr></table></div>'
    """
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><strong>{escape(title)}</strong>{picture}<table>{rows}</table></div>"


class HistogramForm(NotebookForm):
    """The display of a histogram."""

    def _facts(self) -> dict[str, str]:
        sums: Any = self
        weight, positive = float(sums.weight.sum()), float(sums.positive.sum())
        facts = {"rows": f"{sums.rows:,.0f}", "contexts": ", ".join(sums.contexts) or "none"}
        facts |= {"groups": f"{sums.groups:,}", "cells": f"{len(sums.bin):,}"}
        return facts | {"rate": f"{positive / weight:.4g}" if weight > 0 else "unknown"}
