"""What people are told, by commands and from Python: messages, progress, interrupts, failures."""
