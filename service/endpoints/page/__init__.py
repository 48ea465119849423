"""The page at /, the interface at /docs, and what they load."""
