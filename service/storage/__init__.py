"""Where state outlives a request: in memory, in SQLite, or in Redis."""
