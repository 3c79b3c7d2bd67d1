"""How each kind of operation is split: one rule a kind, by families.

What has no rule is whole: it runs once, on whole values.
"""
