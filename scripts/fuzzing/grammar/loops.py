"""Loops, branches and calls of functions."""


def cell(d) -> str:
    """A cell of version 1."""
    kind = d.one("BasicLSTMCell", "GRUCell", "BasicRNNCell", "LSTMCell")
    return f"tf1.nn.rnn_cell.{kind}({d.one(1, 2, 3)}, name={d.name}, dtype=tf.float64)"


def recurrent_layer(d) -> str:
    """A recurrent layer of Keras."""
    options = d.one(
        "return_sequences=True", "return_sequences=True, go_backwards=True", "unroll=False"
    )
    kind = d.one("LSTM", "GRU", "SimpleRNN")
    made = "dtype='float64', kernel_initializer=start, recurrent_initializer=start"
    return f"tf.keras.layers.{kind}({d.one(1, 2, 3)}, {made}, {options})({d.wide(3, 3)})"


def cell_with_lengths(d) -> str:
    """A recurrence whose rows have lengths of their own."""
    x = d.wide(3, 3)
    lengths = f"tf.minimum(tf.cast({d.beside('int', 1)}, tf.int32) % 9, tf.shape({x})[1])"
    return f"recurrence({x}, {cell(d)}, {lengths})"


def predicate(d) -> str:
    """A condition: of numbers, of lengths, of a mode."""
    x = d.f()
    length = f"tf.shape({d.f(1)})[0] {d.one('>', '<')} {d.n}"
    return d.one(f"tf.reduce_sum({x}) > 0.0", length, "tf.constant(mode == 'train')")


STEPS = [
    (3, lambda d: f"recurrence({d.wide(3, 3)}, {cell(d)})"),
    (2, cell_with_lengths),
    (2, recurrent_layer),
    (1, lambda d: f"both_ways({d.wide(3, 3)}, {cell(d)})"),
    (3, lambda d: f"tf.scan(lambda a, h: 0.5 * a + {d.body()}, {d.f(1)})"),
    (
        1,
        lambda d: (
            f"tf.scan(lambda a, h: 0.5 * a + {d.body()}, {d.f(1)},"
            f" tf.zeros_like({d.last.name}[0]), reverse=True)"
        ),
    ),
    (1, lambda d: f"tf.foldl(lambda a, h: 0.5 * a + {d.body()}, {d.f(1)})"),
    (3, lambda d: f"tf.map_fn(lambda h: {d.body()}, {d.f(1)})"),
    (
        1,
        lambda d: (
            f"tf.map_fn(lambda t: t[0] * t[1], ({d.f(1)}, {d.like()}),"
            " fn_output_signature=tf.float64)"
        ),
    ),
    (1, lambda d: f"tf.vectorized_map(lambda h: {d.plain()}, {d.f(1)})"),
    (2, lambda d: f"turns({d.f(2)}, lambda h: {d.body()})"),
    (2, lambda d: f"until({d.f()}, lambda h: {d.body()})"),
    (3, lambda d: f"called(lambda h: {d.body()}, {d.f()})"),
    (1, lambda d: f"called(lambda h, g: {d.body()} * g, {d.f()}, {d.like()})"),
    (
        2,
        lambda d: f"tf.cond({predicate(d)}, lambda: {d.f()} * 2.0, lambda: tf.tanh({d.last.name}))",
    ),
    (1, lambda d: f"tf.cond({predicate(d)}, lambda: {d.f()}, lambda: {d.like()})"),
    (
        1,
        lambda d: (
            f"tf.switch_case(tf.shape({d.f(1)})[0] % 3, [lambda: tf.tanh({d.f()}),"
            f" lambda: {d.last.name} * 2.0, lambda: {d.like()}])"
        ),
    ),
]
