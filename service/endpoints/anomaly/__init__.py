"""`POST /anomaly/score`: fraud scores of the nodes of a graph."""
