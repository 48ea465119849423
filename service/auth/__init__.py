"""API keys: who may call what, how often, and how much."""
