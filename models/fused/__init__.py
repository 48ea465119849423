"""A relaxation step in a few fused kernel calls, for inference on a CPU."""
