"""What is looked at without training: descriptions, curves, a config to begin with."""
