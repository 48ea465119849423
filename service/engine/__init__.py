"""Where models run: a bounded queue, and one thread that takes turns between requests."""
