"""From bytes to checked values: JSON, tensors, arrays, ids."""
