"""The tables of a paper beside ours, one command each."""
