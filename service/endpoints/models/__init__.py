"""`/models`: what is loaded, and what networks have learned."""
