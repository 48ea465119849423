"""`/graphs`: stored graphs, updated in place and scored by name."""
