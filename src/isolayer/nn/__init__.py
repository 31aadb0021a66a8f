"""Torch modules: the monotone layers, and curves as layers."""
