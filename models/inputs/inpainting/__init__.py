"""Complete the holes of photographs of any size by a network that sees windows of one size."""
