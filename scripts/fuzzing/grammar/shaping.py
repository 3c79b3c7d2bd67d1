"""Shapes: what is put beside, cut, turned, repeated, and products over chosen axes."""


def joined(d) -> str:
    """Values end to end, or beside each other."""
    x, axis = d.f(1), d.axis()
    return f"tf.{d.one('concat', 'stack')}([{x}, {d.one(x, d.like())}], {axis})"


def letters(d) -> str:
    """A product over chosen axes."""
    x = d.f(2, 3)
    rank = d.last.rank
    own, other = "abc"[:rank], "xyz"[:rank]
    shared = d.one(*range(rank))
    other = other.replace(other[int(shared)], own[int(shared)])
    pool = sorted({*own, *other})
    kept = "".join(letter for letter in pool if d.often("y", 0.4))[:3]
    return f"tf.einsum('{own},{other}->{kept}', {x}, {d.like()})"


def reshaped(d) -> str:
    """The first two dimensions as one, the last two, or all."""
    x = d.f(1)
    if d.last.rank < 2:
        return f"tf.reshape({x}, [{d.one('-1, 1', '1, -1', '1, 1, -1')}])"
    first, last = d.length(0), d.length(-1)
    rest = ", ".join(d.length(axis) for axis in range(1, d.last.rank))
    merged = ", ".join(d.length(axis) for axis in range(2, d.last.rank))
    return (
        f"tf.reshape({x}, "
        + d.one(
            "[-1]",
            f"[-1, {last}]",
            f"[{first}, -1]",
            f"[{first}, 1, {rest}]",
            f"[1, -1, {rest}]",
            f"[{first} * {d.length(1)}{', ' if merged else ''}{merged}]",
            f"[-1, {rest}, 1]",
        )
        + ")"
    )


def repeated(d) -> str:
    """A value as often as drawn along each axis."""
    x = d.f(1)
    return f"tf.tile({x}, {[int(d.one(1, 1, 2, d.n)) for _ in range(d.last.rank)]})"


def padded(d) -> str:
    """A value with a margin."""
    x = d.f(1)
    margins = [[int(d.one(0, 0, 1)), int(d.one(0, 0, 1, 2))] for _ in range(d.last.rank)]
    return f"tf.pad({x}, {margins}, constant_values=0.5)"


def sliced(d) -> str:
    """A part of a value."""
    x = d.f(1)
    parts = (":", ":", "1:", ":-1", "::-1", "::2", ":1", "0", "-1", "None, :", f":{d.n}")
    return f"{x}[{', '.join(d.one(*parts) for _ in range(d.last.rank))}]"


def product(d) -> str:
    """A product of matrices."""
    x = d.f(2)
    options = d.one("", ", transpose_a=True", ", transpose_b=True")
    return f"tf.matmul({x}, {d.one(x, d.like())}{options})"


def binary(d) -> str:
    """A value by element with one of its shape, or with one that is spread over it."""
    x, sign = d.f(), d.one("+", "-", "*")
    return f"{x} {sign} {d.one(d.like(), d.f())}"


STEPS = [
    (3, joined),
    (2, letters),
    (4, reshaped),
    (2, repeated),
    (2, padded),
    (3, sliced),
    (4, product),
    (4, binary),
    (3, lambda d: f"tf.transpose({d.f(2)}, {d.order()})"),
    (1, lambda d: f"tf.expand_dims({d.f()}, {d.one(0, -1, 1)})"),
    (1, lambda d: f"tf.stack(tf.unstack({d.wide(2)}, axis=-1), {d.axis()})"),
    (1, lambda d: f"tf.add_n(tf.unstack({d.wide(2)}, axis=-1))"),
    (1, lambda d: f"tf.concat(tf.split({d.wide(2)}, {d.length(-1)}, axis=-1), {d.axis()})"),
    (1, lambda d: f"tf.split({d.f(1)}, 2, axis={d.axis()})[1]"),
    (1, lambda d: f"tf.squeeze({d.f(1)}[..., :1], -1)"),
    (2, lambda d: f"tf.tensordot({d.f(1)}, {d.like()}, [[{(a := d.axis())}], [{a}]])"),
    (
        1,
        lambda d: (
            f"tf.matmul({d.wide(2)}, tf.broadcast_to(var({d.name}, {(m := d.last.known[-1])},"
            f" {(n := d.n)}), tf.concat([tf.shape({d.last.name})[:-2], [{m}, {n}]], 0)))"
        ),
    ),
    (1, lambda d: f"{d.f(1)}[:, None] - {d.last.name}[None]"),
    (1, lambda d: f"tf.linalg.diag({d.f(1, 3)})"),
    (1, lambda d: f"tf.linalg.diag_part({d.f(2)})"),
    (1, lambda d: f"tf.linalg.band_part({d.f(2)}, {d.one(0, -1, 1)}, {d.one(0, -1, 1)})"),
    (1, lambda d: f"tf.linalg.{d.one('inv', 'cholesky', 'logdet')}(positive({d.f(2)}))"),
    (
        1,
        lambda d: (
            f"tf.space_to_batch({d.f(4, 4)}, 1 + tf.shape({d.last.name})[1:3] * 0,"
            " [[0, 0], [0, 0]])"
        ),
    ),
    (1, lambda d: f"tf.broadcast_to({d.f(1)}, tf.concat([[{d.n}], tf.shape({d.last.name})], 0))"),
    (1, lambda d: f"tf.ones_like({d.f(1)}) * tf.reduce_mean({d.f()})"),
    (1, lambda d: f"tf.fill([tf.shape({d.f(1)})[0], {d.n}], tf.reduce_mean({d.last.name}))"),
    (1, lambda d: f"tf.cast(tf.range({d.length(0) if d.f(1) else 0}), tf.float64) * 0.1"),
    (1, lambda d: f"tf.one_hot(tf.range(tf.shape({d.f(1)})[0]), {d.n}, dtype=tf.float64)"),
    (1, lambda d: f"tf.cast(tf.size({d.f(1)}), tf.float64) * 0.01"),
]
