"""What the graph is made of: nodes, loops, effects, order, equal tensors."""
