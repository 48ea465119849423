"""Helpers shared by all training tasks: Muon optimizer, hardware, results log, Markdown tables."""
