"""The four training tasks, one folder each."""
