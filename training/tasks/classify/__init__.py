"""Molecules and whole graphs, sorted into classes."""
