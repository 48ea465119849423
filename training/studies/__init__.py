"""Studies of finished models: out-of-distribution detection, resonance, reproductions."""
