"""What a model may be made of: templates, each with a weight.

A template takes a `drawing.Draw` and gives an expression.
"""

from scripts.fuzzing.grammar import batchwise, layers, loops, rows, shaping

STEPS = (*layers.STEPS, *loops.STEPS, *shaping.STEPS, *batchwise.STEPS, *rows.STEPS)
