"""Loops and branches as either version of TensorFlow's control flow makes them."""

import contextlib

from replicate.compat.tensorflow import tf1


@contextlib.contextmanager
def of_version(number):
    """Makes loops and branches of a version, 1 or 2."""
    before = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if number == 2 else tf1.disable_control_flow_v2)()
    try:
        yield
    finally:
        (tf1.enable_control_flow_v2 if before else tf1.disable_control_flow_v2)()
