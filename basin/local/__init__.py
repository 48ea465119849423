"""Models within this process, without a server: `basin.load`."""
