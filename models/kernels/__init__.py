"""Numba kernels; no torch modules."""
