"""A small recogniser of speech (Hannun et al. 2014), as DeepSpeech writes it.

Frames of recordings of different lengths, padded and seen with their neighbours; layers with
clipped activations and dropout on all frames below each other; an LSTM over time; transcripts as
sparse tensors for the CTC loss, and label error rates of what is decoded.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

FRAME, LETTERS, WIDTH = 3, 4, 6


def examples(rows: int) -> tuple[dict, tf.SparseTensor]:
    """Returns recordings with their lengths, and letters for which these are long enough."""
    numbers = np.random.RandomState(13)
    letters = [numbers.randint(0, LETTERS, numbers.randint(1, 4)) for _ in range(rows)]
    lengths = [2 * len(spoken) + numbers.randint(1, 4) for spoken in letters]
    features = {
        "frames": numbers.uniform(-1, 1, [rows, max(lengths), FRAME]).astype(np.float32),
        "length": np.array(lengths, np.int32),
    }
    features["frames"][np.arange(max(lengths)) >= features["length"][:, None]] = 0.0
    places = [[row, i] for row, spoken in enumerate(letters) for i in range(len(spoken))]
    return features, tf.SparseTensor(places, np.concatenate(letters), [rows, 3])


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches as long as their longest recording, of which the last is not full."""

    def trimmed(features, letters):
        longest = tf.reduce_max(features["length"])
        return {**features, "frames": features["frames"][:, :longest]}, letters

    given = tf.data.Dataset.from_tensor_slices(examples(rows))
    return given.batch(batch_size).map(trimmed).repeat(2)


def with_neighbours(frames):
    """[B, T, 3 * FRAME]: each frame between its neighbours, by a convolution that only copies."""
    window = 3 * FRAME
    copies = tf.reshape(tf.eye(window), [3, FRAME, window])
    return tf.nn.conv1d(frames, copies, 1, "SAME")


def dense(x, name, rate):
    """[N, WIDTH], at most 20, some dropped."""
    w = tf1.get_variable(f"{name}/weights", [x.shape[-1], WIDTH], initializer=exactness.start)
    bias = tf1.get_variable(f"{name}/bias", [WIDTH], initializer=tf1.zeros_initializer())
    x = tf.minimum(tf.nn.relu(tf.matmul(x, w) + bias), 20.0)
    return tf.nn.dropout(x, rate=rate) if rate else x


def logits_of(features, rate):
    """[T, B, LETTERS + 1]: each frame's letters, the last of which is no letter."""
    frames = features["frames"]
    rows = tf.shape(frames)[0]
    by_time = tf.transpose(with_neighbours(frames), [1, 0, 2])
    x = tf.reshape(by_time, [-1, 3 * FRAME])
    for layer in (1, 2, 3):
        x = dense(x, f"layer_{layer}", rate)
    x = tf.reshape(x, [-1, rows, WIDTH])
    cell = tf1.nn.rnn_cell.LSTMCell(WIDTH, initializer=exactness.start)
    x, _ = tf1.nn.dynamic_rnn(cell, x, features["length"], dtype=tf.float32, time_major=True)
    x = dense(tf.reshape(x, [-1, WIDTH]), "layer_5", rate)
    w = tf1.get_variable("layer_6/weights", [WIDTH, LETTERS + 1], initializer=exactness.start)
    return tf.reshape(tf.matmul(x, w), [-1, rows, LETTERS + 1])


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    logits = logits_of(features, 0.1 if mode == "train" else 0.0)
    decoded, _ = tf.nn.ctc_greedy_decoder(logits, features["length"])
    predictions = {"letters": tf.sparse.to_dense(decoded[0], default_value=-1)}
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions=predictions)
    letters = tf.cast(labels, tf.int32)
    losses = tf1.nn.ctc_loss(letters, logits, features["length"])
    loss = tf.reduce_mean(losses)
    if mode == "train":
        optimizer = tf1.train.AdamOptimizer(0.01, epsilon=0.01)
        pairs = optimizer.compute_gradients(loss)
        for gradient, weight in pairs:
            tf1.summary.histogram(f"gradients/{weight.op.name}", gradient)
        train_op = optimizer.apply_gradients(pairs, tf1.train.get_global_step())
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    rates = tf.edit_distance(decoded[0], labels)
    found = {
        "label_error_rate": tf1.metrics.mean(rates),
        "losses": tf1.metrics.mean(losses),
        "right": tf1.metrics.mean(tf.cast(tf.equal(rates, 0.0), tf.float32)),
    }
    return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
