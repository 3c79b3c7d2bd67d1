"""A function run once per tower: contexts, lockstep, variables shared by towers."""
