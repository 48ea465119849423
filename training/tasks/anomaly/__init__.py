"""Fraud in graphs: every node is scored."""
