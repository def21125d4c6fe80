"""A cluster that runs: what serves there, what a file would change, what became of it."""
