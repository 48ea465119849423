"""From raw data (graphs, SMILES, images, questions) to tokens."""
