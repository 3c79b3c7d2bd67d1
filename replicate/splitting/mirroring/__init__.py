"""Mirrored variables: each device reads and writes a copy of its own."""
