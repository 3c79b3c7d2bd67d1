"""Variables with a copy on each device: creation, reads, writes, checkpoints."""
