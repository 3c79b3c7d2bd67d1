"""The terminal: progress, interrupts, failures in one line."""
