"""Logs inside an engine: their sums, curves applied to them, and metrics over them, all as Ibis expressions."""

from isolayer.errors import need

need("ibis")
