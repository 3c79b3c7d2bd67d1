"""What rows are looked up, picked, grouped: ids, masks, segments, sparse and ragged rows."""

IDENTITY = "tf1.feature_column.categorical_column_with_identity"


def embedded(d) -> str:
    """Rows of a table."""
    ids = d.value("int", lambda v: v.is_small)
    return f"tf.nn.embedding_lookup(var({d.name}, 6, {d.one(1, 2, 3)}), {ids})"


def bag(d) -> str:
    """Rows of a table, joined by sparse ids."""
    kind = d.one("embedding_lookup_sparse", "safe_embedding_lookup_sparse")
    ids, how = f"pairs({d.value('sparse')})", d.one("'mean'", "'sum'", "'sqrtn'")
    return f"tf.nn.{kind}(var({d.name}, 6, {d.one(1, 2, 3)}), {ids}, None, combiner={how})"


def column(d) -> str:
    """An embedding or an indicator of a feature column."""
    ids = d.value("sparse")
    found = f"{IDENTITY}({ids!r}, 6)"
    made = d.one(
        f"tf1.feature_column.embedding_column({found}, {d.one(1, 2)}, initializer=start)",
        f"tf1.feature_column.indicator_column({found})",
    )
    return f"columns(features, {made})"


def picked(d) -> str:
    """Rows by numbers that are drawn from a model's ids."""
    ids = d.value("int", lambda v: v.is_small)
    x = d.f(1)
    return f"tf.gather({x}, {ids} % tf.shape({x}, {ids}.dtype)[0])"


STEPS = [
    (8, embedded),
    (8, bag),
    (2, column),
    (4, picked),
    (2, lambda d: f"tf.gather({d.f(2)}, tf.range(tf.shape({d.last.name})[1])[::-1], axis=1)"),
    (
        2,
        lambda d: (
            f"tf.gather({d.f(2)}, tf.cast({d.beside('int')}, tf.int32) % tf.shape("
            f"{d.last.name})[1], batch_dims=1, axis=1)"
        ),
    ),
    (
        2,
        lambda d: (
            f"tf.gather_nd({d.f(2)}, tf.stack([tf.range(tf.shape({d.last.name})[0])] * 2, 1)"
            f" % tf.shape({d.last.name})[:2])"
        ),
    ),
    (6, lambda d: f"tf.boolean_mask({d.f(1)}, {d.beside('bool')})"),
    (2, lambda d: f"tf.boolean_mask({d.f(1)}, {d.last.name} > 0.0)"),
    (2, lambda d: f"tf.gather_nd({d.f(1)}, tf.where({d.last.name} > 0.0))"),
    (2, lambda d: f"tf.cast(tf.where({d.f(1)} > 0.0), tf.float64) * 0.1"),
    (2, lambda d: f"tf.where({d.beside('bool')}[:, None], {d.last.name}, 0.5)" if d.f(2) else ""),
    (
        2,
        lambda d: (
            f"tf.dynamic_partition({d.f(1)}, tf.cast({d.beside('bool')}, tf.int32), 2)"
            f"[{d.one(0, 1)}]"
        ),
    ),
    (
        4,
        lambda d: (
            f"tf.math.unsorted_segment_{d.one('sum', 'mean', 'max', 'sqrt_n')}({d.f(1)},"
            f" {d.beside('int')} % 6, 6)"
        ),
    ),
    (
        2,
        lambda d: (
            f"tf.math.segment_{d.one('sum', 'mean', 'max')}({d.f(1)},"
            f" tf.range(tf.shape({d.last.name})[0]) // 2)"
        ),
    ),
    (2, lambda d: f"tf.tensor_scatter_nd_add({d.f(1)}, [[0]], {d.last.name}[:1])"),
    (2, lambda d: f"filled({d.f(1)}, {d.beside('int')} % 6)"),
    (
        2,
        lambda d: (
            f"tf.sequence_mask({d.value('int', lambda v: v.rank == 1)}, {d.n}, dtype=tf.float64)"
        ),
    ),
    (
        2,
        lambda d: (
            f"tf.reverse_sequence({d.f(2)}, tf.cast({d.beside('int')}, tf.int32)"
            f" % tf.shape({d.last.name})[1],"
            " seq_axis=1)"
        ),
    ),
    (2, lambda d: f"tf.one_hot({d.value('int')}, 6, dtype=tf.float64)"),
    (2, lambda d: f"{d.value('int')} + 1"),
    (2, lambda d: f"tf.unique(tf.reshape({d.value('int')}, [-1]))[{d.one(0, 1)}]"),
    (
        2,
        lambda d: (
            f"tf.math.bincount({d.value('int', lambda v: v.is_small)}, minlength=6,"
            " maxlength=6, dtype=tf.float64)"
        ),
    ),
    (
        4,
        lambda d: (
            f"tf.cast(dense_of({d.value('sparse')}, {d.last.shapes[0][1]}), tf.float64) * 0.1"
        ),
    ),
    (2, lambda d: f"tf.reshape(tf.sparse.reduce_sum(pairs({d.value('sparse')}), 1), [-1])"),
    (
        2,
        lambda d: (
            f"tf.sparse.sparse_dense_matmul(tf.cast({d.value('sparse')}, tf.float64),"
            f" var({d.name}, {d.last.shapes[0][1]}, {d.n}))"
        ),
    ),
    (2, lambda d: f"tf.cast(pairs({d.value('sparse')}).values, tf.float64) * 0.1"),
    (
        4,
        lambda d: (
            f"tf.reduce_sum(tf.gather(var({d.name}, 6, {d.one(1, 2)}),"
            f" bags({d.value('ragged')})), 1)"
        ),
    ),
    (2, lambda d: f"tf.cast(bags({d.value('ragged')}).to_tensor(), tf.float64) * 0.1"),
    (2, lambda d: f"tf.gather({d.f(1)}, bags({d.beside('ragged')}).value_rowids())"),
    (2, lambda d: f"bags({d.value('ragged')}).row_lengths()"),
    (2, lambda d: f"tf.cast(bags({d.value('ragged')}).flat_values, tf.float64) * 0.1"),
    (2, lambda d: f"tf.strings.to_hash_bucket_fast({d.value('text')}, 6)"),
    (2, lambda d: f"tf.strings.length({d.value('text')})"),
    (2, lambda d: f"tf.strings.as_string({d.value('int')})"),
]
