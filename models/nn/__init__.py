"""Small torch modules that several networks use."""
