"""Command line: `basin serve`, `score`, `classify`, `complete`, `sample`, `models`, `keys`."""
