"""What the servers of one Redis have in common: answers, rates, jobs and stored memories.

Redis may be away, slow or full. Then each server goes on by itself, and says so (`link`).
"""
