"""What two or more endpoints share: schemas, the request envelope, convergence reports."""
