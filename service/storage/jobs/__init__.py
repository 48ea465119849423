"""Where jobs and their results are kept."""
