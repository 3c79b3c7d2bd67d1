"""Models whose loss or layers look at all rows of a batch."""

from replicate.compat.tensorflow import tf
from tests.splitting.corpus.model import F64, adam, count, hidden, model, weight


def normalized(x):
    return tf.nn.l2_normalize(x, -1)


def two_views(f):
    """[B, D] twice: two views of each row, through the same layers."""
    with tf.compat.v1.variable_scope("encoder", reuse=tf.compat.v1.AUTO_REUSE):
        return tuple(normalized(global_norm(hidden(f[key]))) for key in ("x", "other"))


def global_norm(x):
    """Batch normalisation over all rows, by hand."""
    mean, variance = tf.nn.moments(x, [0])
    return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)


@model(optimizer=adam)
def simclr(f, y):
    """NT-Xent (Chen et al. 2020), with batch normalisation over all rows."""
    del y
    first, second = two_views(f)
    rows = tf.shape(first)[0]
    masks = tf.one_hot(tf.range(rows), rows, dtype=F64)
    labels = tf.one_hot(tf.range(rows), 2 * rows, dtype=F64)
    own_first = tf.matmul(first, first, transpose_b=True) / 0.5 - masks * 1e9
    own_second = tf.matmul(second, second, transpose_b=True) / 0.5 - masks * 1e9
    across = tf.matmul(first, second, transpose_b=True) / 0.5
    back = tf.matmul(second, first, transpose_b=True) / 0.5
    one = tf.nn.softmax_cross_entropy_with_logits(labels, tf.concat([across, own_first], 1))
    other = tf.nn.softmax_cross_entropy_with_logits(labels, tf.concat([back, own_second], 1))
    return tf.reduce_mean(one) + tf.reduce_mean(other), {"across": across, "one": one}


@model
def simclr_of_concatenated_views(f, y):
    """NT-Xent as it is also written: both views below each other, a diagonal taken out."""
    del y
    both = tf.concat(two_views(f), 0)
    rows = tf.shape(f["x"])[0]
    scores = tf.matmul(both, both, transpose_b=True) / 0.5
    scores = tf.linalg.set_diag(scores, tf.fill([2 * rows], tf.constant(-1e9, F64)))
    partners = tf.concat([tf.range(rows, 2 * rows), tf.range(rows)], 0)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(partners, scores)
    return tf.reduce_mean(losses), {"scores": scores, "losses": losses}


@model
def in_batch_softmax_with_corrections(f, y):
    """Sampled softmax whose rows of the same class are no negatives of each other."""
    query, item = hidden(f["x"], 4, "query"), hidden(f["other"], 4, "item")
    scores = tf.matmul(query, item, transpose_b=True)
    labels = y["class"]
    same = tf.equal(labels[:, None], labels[None, :])
    scores = tf.where(
        same & ~tf.eye(tf.shape(scores)[0], dtype=bool)[:, :], tf.constant(-1e9, F64), scores
    )
    losses = -tf.linalg.diag_part(tf.nn.log_softmax(scores))
    return tf.reduce_sum(losses * f["real"]) / tf.reduce_sum(f["real"]), {"losses": losses}


def distances(x):
    """[B, B]: squared distances of all pairs."""
    dots = tf.matmul(x, x, transpose_b=True)
    squares = tf.linalg.diag_part(dots)
    return tf.maximum(squares[:, None] - 2.0 * dots + squares[None, :], 0.0)


@model
def triplets_batch_hard(f, y):
    """The hardest positive and negative of each row (Hermans et al. 2017)."""
    found = distances(hidden(f["x"]))
    same = tf.cast(tf.equal(y["class"][:, None], y["class"][None, :]), F64)
    positive = tf.reduce_max(found * same, 1)
    farthest = tf.reduce_max(found, 1, keepdims=True)
    negative = tf.reduce_min(found + farthest * same, 1)
    losses = tf.nn.relu(positive - negative + 0.3)
    return tf.reduce_mean(losses), {"positive": positive, "negative": negative}


@model
def pairwise_hinge(f, y):
    """Hinge losses of all pairs of rows that are in order."""
    scores = tf.linalg.matvec(hidden(f["x"]), weight("score", 4))
    grades = y["y"][:, 0]
    ordered = tf.cast(grades[:, None] > grades[None, :], F64)
    losses = tf.nn.relu(1.0 - (scores[:, None] - scores[None, :])) * ordered
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(ordered)), {"scores": scores}


@model(optimizer=adam)
def softmax_over_the_batch(f, y):
    scores = tf.linalg.matvec(hidden(f["x"]), weight("score", 4))
    attention = tf.nn.softmax(scores)
    pooled = tf.reduce_sum(attention[:, None] * f["x"], 0)
    return tf.reduce_sum(tf.square(pooled - y["y"])), {"attention": attention, "pooled": pooled}


@model
def sums_along_the_batch(f, y):
    """Cumulative sums, products and logarithms of sums over rows: Cox' partial likelihood."""
    scores = tf.linalg.matvec(hidden(f["x"]), weight("score", 4))
    order = tf.argsort(y["y"][:, 0])
    scores, events = tf.gather(scores, order), tf.gather(f["mask"], order)
    risk = tf.math.cumulative_logsumexp(scores, reverse=True)
    other = tf.cumsum(tf.exp(scores), exclusive=True) + tf.math.cumprod(tf.sigmoid(scores))
    loss = -tf.reduce_sum((scores - risk) * events) / tf.reduce_sum(events)
    return loss + 0.01 * tf.reduce_sum(other), {"risk": risk, "order": order}


@model
def hardest_rows(f, y):
    """Online hard example mining: the mean of the largest losses of a batch."""
    losses = tf.reduce_sum(tf.square(hidden(f["x"], 3) - y["y"]), 1)
    number = tf.maximum(tf.shape(losses)[0] // 2, 1)
    worst, places = tf.math.top_k(losses, number)
    return tf.reduce_mean(worst), {"places": places, "sorted": tf.sort(losses)}


@model
def sorted_rows(f, y):
    """A distance of distributions: sorted outputs beside sorted labels."""
    scores = tf.linalg.matvec(hidden(f["x"]), weight("score", 4))
    found, given = tf.sort(scores), tf.sort(y["y"][:, 0], direction="DESCENDING")
    return tf.reduce_mean(tf.abs(found - given)), {"order": tf.argsort(scores)}


@model
def unique_classes(f, y):
    """The mean of each class that a batch has, by `unique`."""
    x = hidden(f["x"])
    classes, places, numbers = tf.unique_with_counts(y["class"])
    sums = tf.math.unsorted_segment_sum(x, places, tf.size(classes))
    centres = sums / tf.cast(numbers, F64)[:, None]
    found = tf.reduce_mean(tf.square(x - tf.gather(centres, places)))
    return found + 0.1 * tf.reduce_mean(tf.square(centres)), {"classes": classes, "sums": sums}


@model
def segments_of_groups(f, y):
    """Means, maxima and sums of groups of rows."""
    x = hidden(f["x"], 3)
    group = f["group"]
    means = tf.math.unsorted_segment_mean(x, group, 3)
    order = tf.argsort(group, stable=True)
    sums = tf.math.segment_sum(tf.gather(x, order), tf.gather(group, order))
    largest = tf.math.unsorted_segment_max(x, group, 3)
    largest = tf.where(largest < -10.0, tf.zeros_like(largest), largest)
    found = tf.reduce_sum(tf.square(tf.gather(means, group) - y["y"]))
    return found + tf.nn.l2_loss(largest) + tf.reduce_mean(sums), {"means": means}


@model
def dynamic_partition(f, y):
    """A mixture of experts: each row goes to one of two layers, and back."""
    expert = tf.cast(f["x"][:, 0] > 0.0, tf.int32)
    rows = tf.range(tf.shape(f["x"])[0])
    parts = tf.dynamic_partition(f["x"], expert, 2)
    places = tf.dynamic_partition(rows, expert, 2)
    done = [hidden(part, 3, f"expert{n}") for n, part in enumerate(parts)]
    found = tf.dynamic_stitch(places, done)
    return tf.reduce_mean(tf.square(found - y["y"])), {"found": found}


@model
def covariance_and_decorrelation(f, y):
    """Barlow Twins (Zbontar et al. 2021): the correlations of features over the batch."""
    del y
    first, second = hidden(f["x"], 4, "a"), hidden(f["other"], 4, "b")
    first, second = global_norm(first), global_norm(second)
    cross = tf.matmul(first, second, transpose_a=True) / count(first)
    return tf.reduce_sum(tf.square(cross - tf.eye(4, dtype=F64))), {"cross": cross}


@model
def shuffled_within_the_batch(f, y):
    """Mixup with the batch backwards, and rolled."""
    mixed = 0.7 * f["x"] + 0.2 * tf.reverse(f["x"], [0]) + 0.1 * tf.roll(f["x"], 1, 0)
    given = 0.7 * y["y"] + 0.3 * y["y"][::-1]
    return tf.reduce_mean(tf.square(hidden(mixed, 3) - given)), {"mixed": mixed}


@model
def rows_and_their_neighbours(f, y):
    """A penalty on differences of following rows, the first row and the last."""
    x = hidden(f["x"], 3)
    steps = tf.reduce_sum(tf.square(x[1:] - x[:-1]))
    ends = tf.reduce_sum(tf.abs(x[0] - x[-1]))
    return tf.reduce_mean(tf.square(x - y["y"])) + 0.1 * steps + 0.1 * ends, {"steps": steps}


@model
def sinkhorn(f, y):
    """Optimal transport between two halves of a batch: a loop over a [B, B] matrix."""
    del y
    first, second = hidden(f["x"], 4, "a"), hidden(f["other"], 4, "b")
    cost = tf.reduce_sum(tf.square(first[:, None] - second[None]), 2)
    kernel = tf.exp(-cost)
    u = tf.ones_like(cost[:, 0])
    for _ in range(5):
        v = 1.0 / tf.linalg.matvec(kernel, u, transpose_a=True)
        u = 1.0 / tf.linalg.matvec(kernel, v)
    plan = u[:, None] * kernel * v[None]
    return tf.reduce_sum(plan * cost), {"plan": plan}


@model
def kernel_two_samples(f, y):
    """Maximum mean discrepancy with a width from the batch's median distance."""
    del y
    both = tf.concat([hidden(f["x"]), hidden(f["other"], 4, "b")], 0)
    found = distances(both)
    flat = tf.sort(tf.reshape(found, [-1]))
    width = tf.stop_gradient(flat[tf.size(flat) // 2]) + 0.1
    kernel = tf.exp(-found / width)
    rows = tf.shape(f["x"])[0]
    own, across = kernel[:rows, :rows], kernel[:rows, rows:]
    return tf.reduce_mean(own) - tf.reduce_mean(across), {"width": width}


@model
def numbers_capped_by_the_batch(f, y):
    """Sizes that grow with few rows and then no more, as `minimum(batch, 3)`."""
    x = hidden(f["x"], 3)
    few = tf.minimum(tf.shape(x)[0], 3)
    best = tf.math.top_k(tf.reduce_sum(x, 1), few).values
    wide = tf.tile(x, [1, few])
    padded = tf.pad(x, [[0, tf.maximum(4 - tf.shape(x)[0], 0)], [0, 0]])
    found = tf.reduce_mean(tf.square(wide)) + tf.reduce_mean(padded) + tf.reduce_mean(best)
    return found + tf.reduce_mean(tf.square(x - y["y"])), {"padded": padded, "wide": wide}
