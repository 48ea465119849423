"""Alerts of stored graphs: pages, events, webhooks, and the scores that raise those of nodes."""
