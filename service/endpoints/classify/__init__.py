"""`POST /classify`: classes of molecules and whole graphs."""
