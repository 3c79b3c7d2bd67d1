"""One device's graph, split by rows: the same values, computed on K devices.

`states` says what devices hold of a tensor, and `rules` how each kind of operation is split;
`analysis` gives every tensor of a graph its state, and `writing` makes the copies and the joins.
"""
