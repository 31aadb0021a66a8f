"""Fitted curves: the one artefact, its file format, and what it can be exported to."""
