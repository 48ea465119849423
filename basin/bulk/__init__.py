"""Score a graph in parts: with any number of processes, and resumed after any of them is killed."""

from basin.bulk.plan import BulkError
from basin.bulk.tables import score_tables

__all__ = ["BulkError", "score_tables"]
