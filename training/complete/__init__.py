"""Images with holes, filled."""
