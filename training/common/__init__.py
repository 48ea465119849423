"""What every training task uses: the Muon optimizer, hardware, the log of results."""
