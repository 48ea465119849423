"""What resonance does to the figures of a checkpoint, as it is and trained anew."""
