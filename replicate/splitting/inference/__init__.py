"""What is known before anything runs: which dimensions are rows, and the values of sizes."""
