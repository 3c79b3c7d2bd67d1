"""Losses, metrics and optimizers."""

# A template draws from what is left over in a model: the numbers that nothing reads yet.
LOSSES = [
    (4, lambda d: f"tf.reduce_mean(tf.square({d.f()} - 0.3))"),
    (3, lambda d: f"tf.reduce_sum({d.f()}) * 0.1"),
    (3, lambda d: f"masked_mean({d.f(1)}, {d.beside('bool')})"),
    (
        2,
        lambda d: (
            f"tf.reduce_mean(tf.square(tf.reduce_mean(flat({d.f(1)}), 1) - {d.beside('label')}))"
        ),
    ),
    (
        2,
        lambda d: (
            f"tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels={d.beside('label')},"
            f" logits=tf.reduce_sum(flat({d.last.name}), 1)))"
            if d.f(1)
            else ""
        ),
    ),
    (
        1,
        lambda d: (
            f"tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits("
            f"labels={d.beside('class')}, logits=tf.tile(flat({d.last.name})[:, :1], [1, 3])"
            f" * [[1.0, 0.5, 0.1]]))"
            if d.f(2)
            else ""
        ),
    ),
    (3, lambda d: f"contrast({d.f(1)})"),
    (2, lambda d: f"pairwise(tf.reduce_mean(flat({d.f(1)}), 1), {d.beside('label')})"),
    (1, lambda d: f"tf.reduce_logsumexp({d.f()})"),
    (1, lambda d: f"tf.reduce_max({d.f()})"),
    (2, lambda d: f"tf.reduce_mean(tf.nn.softplus(standard({d.f(1)}, {d.axes()})))"),
    (1, lambda d: f"tf.reduce_mean(tf.square(standard({d.f(1)}, [0]) - 0.1))"),
    (1, lambda d: f"sampled({d.name}, {d.wide(2, 2)}, {d.beside('class')})"),
]
# A loss from another one.
MORE = [
    (6, lambda d: "{loss}"),
    (1, lambda d: "{loss} + penalty()"),
    (1, lambda d: f"{{loss}} + slope({{loss}}, {d.f(1)})"),
]
METRICS = [
    (3, lambda d: f"tf1.metrics.mean({d.f()})"),
    (1, lambda d: f"tf1.metrics.mean({d.f(1)}, {d.like('bool')})"),
    (1, lambda d: f"tf1.metrics.root_mean_squared_error({d.f()}, {d.like()})"),
    (1, lambda d: f"tf1.metrics.accuracy({d.f()} > 0.0, {d.like()} > 0.1)"),
    (1, lambda d: f"tf1.metrics.auc({d.f(1)} > 0.0, tf.sigmoid({d.last.name}), num_thresholds=5)"),
    (1, lambda d: f"tf1.metrics.mean_tensor(tf.reduce_sum({d.f(1)}, 0))"),
    (1, lambda d: f"tf1.metrics.precision({d.f(1)} > 0.0, {d.like()} > 0.0)"),
]
OPTIMIZERS = [
    (5, "tf1.train.GradientDescentOptimizer(0.1)"),
    (1, "tf1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True)"),
    (1, "tf1.train.AdamOptimizer(0.05, epsilon=0.1)"),
    (1, "tf1.train.AdagradOptimizer(0.1)"),
    (1, "tf1.train.RMSPropOptimizer(0.01, epsilon=0.1, centered=True)"),
    (1, "tf1.train.FtrlOptimizer(0.1)"),
]
WAYS = ("minimized",) * 4 + ("optimizer_fn", "optimizer_fn", "clipped", "clipped", "afterwards")
