"""AdamW and LAMB as optimizers of TensorFlow 1, which has neither; tf_keras has no LAMB either."""

from collections.abc import Sequence

from replicate.compat.tensorflow import tf, tf1


class AdamW(tf1.train.AdamOptimizer):
    """Adam with a decay of the weights that is not scaled as gradients are.

    With m and v as Adam has them, corrected for their start at 0:
    d = m / (sqrt(v) + epsilon) + weight_decay * w, and w -= learning_rate * d.
    See https://arxiv.org/abs/1711.05101.

    Args:
        learning_rate: A number, or a tensor of shape [].
        beta1: How much m keeps of itself in a step.
        beta2: How much v keeps of itself in a step.
        epsilon: See above.
        weight_decay: Likewise.
        exclude_from_decay: Parts of the names of variables whose weights do not decay.
    """

    def __init__(
        self,
        learning_rate: float | tf.Tensor = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        exclude_from_decay: Sequence[str] = (),
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, name=type(self).__name__)
        self._rate, self._betas, self._added = learning_rate, (beta1, beta2), epsilon
        self._weight_decay = weight_decay
        self._excluded = exclude_from_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Tensor:
        """See base class."""
        with tf.init_scope():
            graph = tf1.get_default_graph()
        moments = []
        news = {"m": ("beta1_power", grad), "v": ("beta2_power", tf.square(grad))}
        for beta, (slot, (power, new)) in zip(self._betas, news.items(), strict=True):
            slot, power = self.get_slot(var, slot), self._get_non_slot_variable(power, graph)
            kept = slot.assign(beta * slot + (1 - beta) * new)
            moments.append(kept / tf.cast(1 - tf.cast(power, tf.float64), grad.dtype))
        step = moments[0] / (tf.sqrt(moments[1]) + self._added)
        if not any(part in var.name for part in self._excluded):
            step += self._weight_decay * var
        rate = tf.cast(self._rate, grad.dtype) if tf.is_tensor(self._rate) else self._rate
        return var.assign_sub(rate * self._ratio(var, step) * step)

    def _ratio(self, variable: tf.Variable, step: tf.Tensor) -> tf.Tensor | float:
        """Returns by how much a variable's step is made longer."""
        return 1.0

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor
    ) -> tf.Tensor:
        """See base class; the weights of all rows decay."""
        shape = tf.shape(var, out_type=indices.dtype)
        return self._resource_apply_dense(tf.scatter_nd(indices[:, None], grad, shape), var)

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Tensor:
        """See base class."""
        return self._resource_apply_dense(grad, var)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: tf.Variable) -> tf.Tensor:
        """See base class."""
        return self._resource_apply_sparse(grad.values, var, grad.indices)


class LAMB(AdamW):
    """AdamW whose step d is |w| / |d| times as long, for each variable, if neither is 0.

    See https://arxiv.org/abs/1904.00962. Of a partitioned variable each part counts by itself.
    """

    def _ratio(self, variable: tf.Variable, step: tf.Tensor) -> tf.Tensor | float:
        """See base class."""
        weight, length = tf.norm(variable), tf.norm(step)
        is_known = (weight > 0) & (length > 0)
        return tf.where(is_known, weight / tf.where(is_known, length, 1), 1)
