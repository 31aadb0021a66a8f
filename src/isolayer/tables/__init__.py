"""Logs that live in an engine: their sums, curves applied to them, metrics over them, all as Ibis expressions."""

from isolayer.errors import need

need("ibis")
