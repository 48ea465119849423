"""Child processes that parse what could hang, crash or block."""
