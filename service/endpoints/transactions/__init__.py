"""`/graphs/{id}/transactions` and `/graphs/{id}/alerts`: rows that come in, and what they raise."""
