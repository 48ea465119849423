"""Scores of the rows of a table of transactions, each by what came before it."""
