"""Mirrored variables: what writes them is copied on each device."""
