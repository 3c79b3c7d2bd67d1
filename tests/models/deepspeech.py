"""A small DeepSpeech with a fused LSTM, as its newer releases write it.

The network of `tests/models/speech.py`, with overlapping windows, layers that are normalised, and
one operation for all steps of the LSTM, `BlockLSTM`, as `LSTMBlockFusedCell` of tf.contrib makes
it. Which recordings have no finite loss is told by their names.
"""

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.models import speech

WIDTH, LETTERS = speech.WIDTH, speech.LETTERS


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Those of `speech`, with the names of their files."""

    def named(features, letters):
        names = tf.strings.join([tf.strings.as_string(features["length"]), ".wav"])
        return {**features, "file": names}, letters

    return speech.input_fn(rows, batch_size).map(named)


def dense(x, name, rate, is_normed=True):
    """[N, WIDTH]: at most 20, normalised, some dropped."""
    w = tf1.get_variable(f"{name}/weights", [x.shape[-1], WIDTH], initializer=exactness.start)
    bias = tf1.get_variable(f"{name}/bias", [WIDTH], initializer=tf1.zeros_initializer())
    x = tf.nn.bias_add(tf.matmul(x, w), bias)
    if is_normed:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gamma = tf1.get_variable(f"{name}/gamma", [WIDTH], initializer=tf1.ones_initializer())
        x = tf.nn.batch_normalization(x, mean, variance, None, gamma, 1e-3)
    x = tf.minimum(tf.nn.relu(x), 20.0)
    return tf.nn.dropout(x, rate=rate) if rate else x


def fused_lstm(x, lengths):
    """[T, B, WIDTH]: what an LSTM gives at each step, 0 after the end of a row."""
    steps, rows, width = tf.shape(x)[0], tf.shape(x)[1], x.shape[-1]
    with tf1.variable_scope("lstm_fused_cell"):
        kernel = tf1.get_variable("kernel", [width + WIDTH, 4 * WIDTH], initializer=exactness.start)
        bias = tf1.get_variable("bias", [4 * WIDTH], initializer=tf1.zeros_initializer())
    zeros, none = tf.zeros([rows, WIDTH]), tf.zeros([WIDTH])
    made = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.cast(tf.reduce_max(lengths), tf.int64),
        x=x,
        cs_prev=zeros,
        h_prev=zeros,
        w=kernel,
        wci=none,
        wcf=none,
        wco=none,
        b=bias,
        forget_bias=0.0,
        cell_clip=-1.0,
        use_peephole=False,
    )
    is_before_end = tf.transpose(tf.sequence_mask(lengths, steps, tf.float32))
    return made.h * tf.expand_dims(is_before_end, -1)


def logits_of(features, rate):
    """[T, B, LETTERS + 1]: each frame's letters, the last of which is no letter."""
    frames = features["frames"]
    rows = tf.shape(frames)[0]
    windows = speech.with_neighbours(frames)
    x = tf.reshape(tf.transpose(windows, [1, 0, 2]), [-1, 3 * speech.FRAME])
    for layer in (1, 2, 3):
        x = dense(x, f"layer_{layer}", rate)
    x = fused_lstm(tf.reshape(x, [-1, rows, WIDTH]), features["length"])
    x = dense(tf.reshape(x, [-1, WIDTH]), "layer_5", rate)
    w = tf1.get_variable("layer_6/weights", [WIDTH, LETTERS + 1], initializer=exactness.start)
    return tf.reshape(tf.matmul(x, w), [-1, rows, LETTERS + 1])


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    logits = logits_of(features, 0.1 if mode == "train" else 0.0)
    if mode == "infer":
        chances = tf.transpose(tf.nn.softmax(logits), [1, 0, 2])
        return estimator.EstimatorSpec(mode, predictions={"chances": chances})
    letters = tf.cast(labels, tf.int32)
    losses = tf1.nn.ctc_loss(letters, logits, features["length"])
    failed = tf.gather(features["file"], tf.where(~tf.math.is_finite(losses)))
    loss = tf.reduce_mean(losses)
    if mode == "train":
        optimizer = tf1.train.AdamOptimizer(0.01, epsilon=0.01)
        pairs = optimizer.compute_gradients(loss)
        train_op = optimizer.apply_gradients(pairs, tf1.train.get_global_step())
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    decoded, _ = tf.nn.ctc_greedy_decoder(logits, features["length"])
    found = {
        "label_error_rate": tf1.metrics.mean(tf.edit_distance(decoded[0], labels)),
        "losses": tf1.metrics.mean(losses),
        "failed": tf1.metrics.mean(tf.cast(tf.size(failed), tf.float32)),
    }
    return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
