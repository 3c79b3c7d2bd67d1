"""Floor 5: what a person runs; `replicate` on the command line starts in `cli`."""
