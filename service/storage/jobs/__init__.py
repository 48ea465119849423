"""Job stores."""
