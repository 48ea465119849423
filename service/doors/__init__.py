"""Who may come in: keys and what they are for, and how much of it."""
