"""The folder of a run: checkpoints, locks, files written whole."""
