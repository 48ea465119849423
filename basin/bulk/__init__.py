"""Score a graph in parts: any number of processes, killed at any time, with the answer of one."""

from basin.bulk.plan import BulkError
from basin.bulk.tables import score_tables

__all__ = ["BulkError", "score_tables"]
