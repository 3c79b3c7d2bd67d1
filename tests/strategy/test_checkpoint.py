"""Copies in checkpoints: what tests/conformance/test_checkpoints.py does not say."""

from replicate import strategy as core
from replicate.compat.tensorflow import tf1


def test_what_keras_feeds_reaches_every_copy(session):
    strategy = core.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        variable = tf1.get_variable("v", initializer=[1.0, 2.0], use_resource=True)
    session.run(tf1.global_variables_initializer())
    session.run(variable._assign_op, {variable._assign_placeholder: [5.0, 6.0]})
    copies = session.run([member.read_value() for member in variable.members])
    assert [copy.tolist() for copy in copies] == [[5.0, 6.0], [5.0, 6.0]]
    assert variable._assign_op is variable._assign_op
