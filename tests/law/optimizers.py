"""Optimizers as people write them for themselves: some assign, some finish by themselves."""

import re

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, running


class DecayingAdam(tf1.train.Optimizer):
    """Adam with decayed weights that makes its slots, and assigns, by itself.

    As the optimizer of BERT's published code (Devlin et al. 2018): no bias correction, and
    `apply_gradients` leaves the global step to whoever calls it.
    """

    def __init__(self, rate, decay=0.01, beta1=0.9, beta2=0.999, epsilon=1e-2, exclude=()):
        super().__init__(False, "DecayingAdam")
        self.rate, self.decay = rate, decay
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.exclude = exclude

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """See base class."""
        assigned = []
        for gradient, variable in grads_and_vars:
            if gradient is not None and variable is not None:
                assigned += self._assign(tf.convert_to_tensor(gradient), variable)
        return tf.group(*assigned, name=name)

    def _assign(self, gradient, variable):
        name = re.match(r"^(.*):\d+$", variable.name).group(1)
        m, v = (self._slot(f"{name}/{key}", variable) for key in ("adam_m", "adam_v"))
        next_m = self.beta1 * m + (1.0 - self.beta1) * gradient
        next_v = self.beta2 * v + (1.0 - self.beta2) * tf.square(gradient)
        update = next_m / (tf.sqrt(next_v) + self.epsilon)
        if not any(re.search(pattern, name) for pattern in self.exclude):
            update += self.decay * variable
        next_value = variable - self.rate * update
        return [variable.assign(next_value), m.assign(next_m), v.assign(next_v)]

    def _slot(self, name, variable):
        return tf1.get_variable(
            name,
            variable.shape.as_list(),
            variable.dtype.base_dtype,
            tf1.zeros_initializer(),
            trainable=False,
        )


class Counting(tf1.train.GradientDescentOptimizer):
    """Divides its rate by the steps it has made, which it counts when it is finished."""

    def _create_slots(self, var_list):
        first = min(var_list, key=lambda variable: variable.name)
        self._create_non_slot_variable(1.0, "steps", first)

    def _steps(self):
        return self._get_non_slot_variable("steps", tf1.get_default_graph())

    def _resource_apply_dense(self, grad, var):
        rate = tf.cast(0.1 / self._steps(), grad.dtype)
        return var.assign_sub(rate * grad, read_value=False)

    def _finish(self, update_ops, name_scope):
        with tf1.control_dependencies(update_ops), tf1.colocate_with(self._steps()):
            counted = self._steps().assign_add(1.0, read_value=False)
        return tf.group(*update_ops, counted, name=name_scope)


class Clipping(tf1.train.AdamOptimizer):
    """Clips in `compute_gradients`, as many subclasses do."""

    def compute_gradients(self, *args, **kwargs):
        """See base class."""
        pairs = super().compute_gradients(*args, **kwargs)
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1e-2)
        return list(zip(clipped, [variable for _, variable in pairs], strict=True))


class Decaying(tf1.train.MomentumOptimizer):
    """Adds its decay in `apply_gradients`, then leaves the rest to its base."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """See base class."""
        pairs = [(gradient + 0.1 * variable, variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(pairs, global_step, name)


class LookingAhead:
    """No optimizer at all: fast weights of another's, and slow ones every second step."""

    def __init__(self, inner):
        self.inner = inner

    def minimize(self, loss, global_step):
        """Makes the step and counts it."""
        trained = tf1.trainable_variables()
        slow = [self._slow(variable) for variable in trained]
        with tf1.control_dependencies([self.inner.minimize(loss, global_step)]):
            is_second = tf.equal(global_step.read_value() % 2, 0)
            fast = [v.read_value() for v in trained]
            kept = [v.read_value() for v in slow]
        assigned = []
        for v, s, now, before in zip(trained, slow, fast, kept, strict=True):
            merged = before + 0.5 * (now - before)
            assigned += [
                v.assign(tf.where(is_second, merged, now)),
                s.assign(tf.where(is_second, merged, before)),
            ]
        return tf.group(*assigned)

    def _slow(self, variable):
        name, shape = f"{variable.op.name}/slow", variable.shape.as_list()
        dtype = variable.dtype.base_dtype
        return tf1.get_variable(name, shape, dtype, exactness.start, trainable=False)


def loss(f, y, v):
    return losses.quotient(f, y, v) + 0.1 * tf.nn.l2_loss(v.w)


def by_hand(optimizer, norm=None):
    """A step as BERT's code makes it: gradients, a clip, an optimizer, a counted step."""

    def step(f, y, v):
        made = loss(f, y, v)
        trained = running.trained(v)
        gradients = tf.gradients(made, trained)
        if norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, norm)
        update = optimizer().apply_gradients(zip(gradients, trained, strict=True))
        count = tf1.train.get_global_step()
        return made, tf.group(update, [count.assign(count + 1)])

    return step


def minimizing(optimizer):
    def step(f, y, v):
        made = loss(f, y, v)
        return made, optimizer().minimize(made, tf1.train.get_global_step())

    return step


def lookahead():
    return LookingAhead(running.momentum())


OPTIMIZERS = {
    "assigns by itself": lambda: DecayingAdam(0.05),
    "assigns by itself, by names": lambda: DecayingAdam(0.05, exclude=["^w$"]),
    "finishes by itself": lambda: Counting(0.0),
    "clips by itself": lambda: Clipping(0.05, epsilon=0.01),
    "decays by itself": lambda: Decaying(0.05, 0.9),
}
STEPS = {
    **{name: minimizing(optimizer) for name, optimizer in OPTIMIZERS.items()},
    "assigns by itself, clipped": by_hand(OPTIMIZERS["assigns by itself"], 1e-2),
    "assigns by itself, by hand": by_hand(OPTIMIZERS["assigns by itself, by names"]),
    "finishes by itself, clipped": by_hand(OPTIMIZERS["finishes by itself"], 1e-2),
    "slow weights": minimizing(lookahead),
}
