"""Writes composite operations as plain ones, before a graph is split."""
