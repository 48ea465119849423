"""Jobs: requests under `Prefer: respond-async`, run in the background and kept.

A job belongs to the API key that it came with; other keys get 404. Ids cannot be guessed.
"""
