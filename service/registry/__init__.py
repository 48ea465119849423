"""Which models are loaded, how they are loaded, and handles to them."""
