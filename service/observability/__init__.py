"""Metrics, traces, logs, timings and memory statistics."""
