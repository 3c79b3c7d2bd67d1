"""Layers of networks: products, convolutions, normalisation, attention, dropout."""


def keras_norm(d) -> str:
    """A Keras layer of batch normalisation."""
    layer = "tf.keras.layers.BatchNormalization(momentum=0.5, dtype='float64')"
    return f"keras_normed({d.wide(2)}, {layer}, mode)"


def multi_head(d) -> str:
    """Keras' attention."""
    heads = d.one(1, 1, 2, 3)
    layer = (
        f"tf.keras.layers.MultiHeadAttention({heads}, {d.one(1, 2, 3)}, dtype='float64',"
        " kernel_initializer=tf.keras.initializers.RandomUniform(-0.5, 0.5, seed=1))"
    )
    x = d.wide(3, 3)
    return f"{layer}({x}, {d.one(x, d.wide(3, 3))})"


def convolution(d) -> str:
    """A convolution of version 1's layers, over one dimension or two."""
    n = int(d.one(1, 2))
    x = d.wide(n + 2, n + 2)
    form = d.one("same", "valid")
    more = d.one("", "", ", strides=2", ", dilation_rate=2", ", activation=tf.nn.relu")
    return (
        f"tf1.layers.conv{n}d({x}, {d.n}, {d.one(1, 2, 3)}, padding={form!r}, name={d.name},"
        f" kernel_initializer=start{more})"
    )


STEPS = [
    (
        6,
        lambda d: (
            f"tf1.layers.dense({d.wide()}, {d.n}, {d.one('None', 'tf.tanh', 'tf.nn.relu')},"
            f" name={d.name}, kernel_initializer=start)"
        ),
    ),
    (
        2,
        lambda d: (
            f"tf.keras.layers.Dense({d.n}, dtype='float64', kernel_initializer=start)({d.wide(2)})"
        ),
    ),
    (2, lambda d: f"tf.tensordot({d.wide()}, var({d.name}, {d.length(-1)}, {d.n}), 1)"),
    (3, lambda d: f"{d.wide()} * var({d.name}, {d.length(-1)}) + 0.1"),
    (2, lambda d: f"{d.f()} * var({d.name})"),
    (1, lambda d: f"var({d.name}, {d.n}, {d.n})"),
    (1, lambda d: f"var({d.name})"),
    (4, convolution),
    (
        1,
        lambda d: (
            f"tf.nn.depthwise_conv2d({d.wide(4, 4)}, var({d.name}, 2, 2, {d.length(-1)},"
            f" {d.one(1, 2)}), [1, 1, 1, 1], 'SAME')"
        ),
    ),
    (1, lambda d: f"tf.nn.{d.one('max', 'avg')}_pool2d({d.f(4, 4)}, 2, {d.one(1, 2)}, 'SAME')"),
    (1, lambda d: f"tf.nn.{d.one('max', 'avg')}_pool1d({d.f(3, 3)}, 2, {d.one(1, 2)}, 'SAME')"),
    (
        4,
        lambda d: (
            f"tf1.layers.batch_normalization({d.wide()}, axis={d.one(-1, -1, 1)},"
            f" training=mode == 'train', momentum=0.5, fused=False, name={d.name})"
        ),
    ),
    (2, lambda d: f"normed({d.wide(4, 4)}, {d.one(-1, 1)}, mode, {d.name})"),
    (1, lambda d: f"normed({d.wide(2, 2)}[:, None, None, :], -1, mode, {d.name})"),
    (2, keras_norm),
    (
        2,
        lambda d: (
            f"tf.keras.layers.LayerNormalization({d.one('-1', '1', '[1, 2]')},"
            f" dtype='float64')({d.wide(2)})"
        ),
    ),
    (2, lambda d: f"standard({d.f(1)}, {d.axes()})"),
    (4, lambda d: f"attention({d.wide(3, 3)}, {d.last.name}, {d.one(1, 1, 2, 3)})"),
    (2, lambda d: f"attention({d.wide(3, 3)}, {d.beside(low=3)}, {d.one(1, 2)})"),
    (2, multi_head),
    (2, lambda d: f"tf.nn.dropout({d.f(1)}, {d.one(0.3, 0.5)}, seed={d.one(1, 2, 3)})"),
    (
        1,
        lambda d: (
            f"{d.f(1)} + 0.1 * tf.random.{d.one('normal', 'uniform')}(tf.shape("
            f"{d.last.name}), dtype=tf.float64, seed={d.one(1, 2, 3)})"
        ),
    ),
    (1, lambda d: f"moved({d.name}, {d.f()}, mode) * {d.last.name}"),
    (1, lambda d: f"turned({d.f()})"),
    (1, lambda d: f"checked({d.f()})"),
    (1, lambda d: f"outside({d.f(1)}) * {d.last.name}"),
    (
        1,
        lambda d: f"in_parts({d.name}, {d.length(-1)}, {d.n}, {d.wide(2, 2)})" if d.wide(2) else "",
    ),
    (
        1,
        lambda d: (
            f"tf1.layers.conv2d_transpose({d.wide(4, 4)}, {d.n}, 2, strides={d.one(1, 2)},"
            f" name={d.name}, kernel_initializer=start)"
        ),
    ),
]
