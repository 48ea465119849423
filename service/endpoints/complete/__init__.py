"""`POST /complete`: images with holes, filled."""
