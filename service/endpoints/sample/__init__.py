"""`POST /sample`: stochastic-attention samples from a memory."""
