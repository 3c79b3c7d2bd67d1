"""Several processes: who belongs, who answers, whether they built the same."""
