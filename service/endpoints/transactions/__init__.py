"""`/graphs/{id}/transactions`: rows that are stored and scored as they come in."""
