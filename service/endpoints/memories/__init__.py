"""`/memories`: stored memories for sampling."""
