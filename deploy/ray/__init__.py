"""Basin on a Ray cluster: `python -m deploy.ray`."""
