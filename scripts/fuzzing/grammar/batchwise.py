"""What may look at all rows: reductions, sorting, sums up to a row."""

UNARY = "tanh sigmoid softplus abs square exp sin negative identity".split()


def reduced(d) -> str:
    """A reduction over some axes."""
    kind = d.one("sum", "mean", "max", "min", "prod", "logsumexp", "std", "euclidean_norm")
    name = f"tf.{'math.' if 'std' in kind or 'norm' in kind else ''}reduce_{kind}"
    x = d.f(1)
    return f"{name}({x}{d.often(' + 0.1')}, {d.axes()}{d.often(', keepdims=True')})"


STEPS = [
    (6, reduced),
    (4, lambda d: f"tf.{d.one(*UNARY)}({d.f()})"),
    (1, lambda d: f"tf.nn.{d.one('relu', 'elu', 'leaky_relu', 'selu', 'relu6')}({d.f()})"),
    (3, lambda d: f"tf.nn.{d.one('softmax', 'log_softmax')}({d.f(1)}, {d.axis()})"),
    (1, lambda d: f"tf.math.l2_normalize({d.f(1)}, {d.axis()}, 1e-2)"),
    (
        2,
        lambda d: (
            f"tf.cumsum({d.f(1)}, {d.axis()}, exclusive={d.one(True, False)},"
            f" reverse={d.one(True, False)})"
        ),
    ),
    (1, lambda d: f"tf.math.cumprod({d.f(1)}, {d.axis()})"),
    (2, lambda d: f"tf.sort({d.f(1)}, {d.axis()}, {d.one(repr('ASCENDING'), repr('DESCENDING'))})"),
    (1, lambda d: f"tf.argsort({d.f(1)}, {d.axis()})"),
    (1, lambda d: f"tf.math.top_k({d.f(1)}, 1)[{d.one(0, 1)}]"),
    (1, lambda d: f"tf.gather({d.f(1)}, tf.argsort({d.beside()}[..., 0], 0))" if d.f(2) else ""),
    (1, lambda d: f"tf.reverse({d.f(1)}, [{d.axis()}])"),
    (1, lambda d: f"tf.roll({d.f(1)}, 1, {d.axis()})"),
    (1, lambda d: f"tf.argmax({d.f(1)}, {d.axis()})"),
    (1, lambda d: f"tf.maximum({d.f()}, {d.like()})"),
    (1, lambda d: f"tf.where({d.f()} > 0.0, {d.last.name}, {d.like()})"),
    (1, lambda d: f"{d.f()} > tf.reduce_mean({d.last.name})"),
    (1, lambda d: f"tf.clip_by_value({d.f()}, -0.3, 0.3)"),
    (1, lambda d: f"tf.clip_by_norm({d.f(1)}, 0.5, {d.one('None', [0], [-1])})"),
    (1, lambda d: f"tf.stop_gradient({d.f()}) * {d.like()}"),
    (1, lambda d: f"tf.cast({d.value('int')}, tf.float64) * 0.1"),
    (1, lambda d: f"tf.cast({d.value('bool')}, tf.float64)"),
    (1, lambda d: f"tf.nn.moments({d.f(1)}, {d.axes()})[{d.one(0, 1)}]"),
    (1, lambda d: f"tf.identity(tf.gradients(tf.reduce_sum(tf.square({d.f()})), [{d.f()}])[0])"),
]
