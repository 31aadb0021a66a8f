"""Torch modules: the monotone layers, and curves as layers."""

from isolayer.errors import need

need("torch")
