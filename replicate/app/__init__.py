"""What a person runs; `replicate` on the command line starts in `command.cli`."""
