"""Pictures, and questions about them, answered."""
