"""SMILES are read in a process of their own, which can be killed."""
