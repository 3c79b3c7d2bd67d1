#!/usr/bin/env python3
"""Writes the synthetic data of `replicate/examples` anew; the seeds are fixed.

`orders-*.csv.gz` and `sentences-*.tfrecord.gz` are made up: nobody ordered or wrote anything.
`scripts/example_data.py FOLDER` writes elsewhere than beside the examples.
"""

import csv
import gzip
import io
import sys
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parent.parent / "replicate" / "examples"

CHANNELS = ("app", "phone", "shop", "web")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LANDS = ("at", "be", "ch", "de", "es", "fr", "it", "nl", "pl", "pt", "se", "uk")
PRODUCTS = 60
ORDERS = {"train": 16_000, "test": 4_000}

WORDS, TAGS, LENGTH = 200, 7, 24  # word 0 and tag 0 are padding
SENTENCES = {"train": 3_000, "test": 500}


def orders() -> tuple[list[dict[str, object]], np.ndarray]:
    """Returns orders, and the chance that each one is sent back.

    The log odds are a number for each pair of channel and day (to be remembered: wide), a
    product of two traits of product and land (to be generalised: deep), and a line in the
    logarithm of the price. One price in fifty is not known.
    """
    numbers = np.random.RandomState(11)
    pairs = 1.5 * numbers.randn(len(CHANNELS), len(DAYS))
    product_traits, land_traits = numbers.randn(PRODUCTS, 2), numbers.randn(len(LANDS), 2)
    count = sum(ORDERS.values())
    channel, day = numbers.randint(len(CHANNELS), size=count), numbers.randint(7, size=count)
    product, land = numbers.randint(PRODUCTS, size=count), numbers.randint(len(LANDS), size=count)
    price = np.round(np.exp(3.0 + 0.8 * numbers.randn(count)), 2)
    items = 1 + numbers.poisson(1.0, count)
    odds = pairs[channel, day] + 1.5 * (product_traits[product] * land_traits[land]).sum(axis=1)
    odds += 0.8 * (np.log(price) - 3.0) - 0.5
    chance = 1.0 / (1.0 + np.exp(-odds))
    is_back = numbers.uniform(size=count) < chance
    is_unknown = numbers.uniform(size=count) < 0.02
    rows = [
        {
            "channel": CHANNELS[channel[i]],
            "day": DAYS[day[i]],
            "land": LANDS[land[i]],
            "product": int(product[i]),
            "items": int(items[i]),
            "price": "" if is_unknown[i] else f"{price[i]:.2f}",
            "returned": int(is_back[i]),
        }
        for i in range(count)
    ]
    return rows, chance


def sentences() -> list[tuple[list[int], list[int]]]:
    """Returns the words and the tags of sentences, unpadded.

    Tags follow each other as in a Markov chain. One word in four has one tag; any other has
    two, and only the words around it tell which one is meant.
    """
    numbers = np.random.RandomState(12)
    follows = numbers.dirichlet([0.15] * (TAGS - 1), size=TAGS - 1)  # from tag to tag
    may: dict[int, list[int]] = {tag: [] for tag in range(TAGS - 1)}
    for word in range(1, WORDS):
        for tag in numbers.choice(TAGS - 1, 1 if word < WORDS // 4 else 2, replace=False):
            may[int(tag)].append(word)
    found = []
    for _ in range(sum(SENTENCES.values())):
        length = numbers.randint(4, LENGTH + 1)
        tags = [int(numbers.randint(TAGS - 1))]
        while len(tags) < length:
            tags.append(int(numbers.choice(TAGS - 1, p=follows[tags[-1]])))
        words = [may[tag][numbers.randint(len(may[tag]))] for tag in tags]
        found.append((words, [tag + 1 for tag in tags]))
    return found


def write_orders(folder: Path) -> None:
    """Writes the orders as CSV, compressed with gzip."""
    rows, _ = orders()
    for part, cut in (("train", slice(0, ORDERS["train"])), ("test", slice(ORDERS["train"], None))):
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[cut])
        packed = gzip.compress(text.getvalue().encode(), mtime=0)
        (folder / f"orders-{part}.csv.gz").write_bytes(packed)


def write_sentences(folder: Path) -> None:
    """Writes the sentences as TFRecords, compressed with gzip, padded with zeros."""
    import tensorflow as tf

    def whole(values: list[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    found = sentences()
    for part, cut in (
        ("train", slice(0, SENTENCES["train"])),
        ("test", slice(SENTENCES["train"], None)),
    ):
        path = folder / f"sentences-{part}.tfrecord.gz"
        with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions("GZIP")) as writer:
            for words, tags in found[cut]:
                rest = [0] * (LENGTH - len(words))
                feature = {
                    "length": whole([len(words)]),
                    "tags": whole(tags + rest),
                    "words": whole(words + rest),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString(deterministic=True))


def main(folder: Path = EXAMPLES) -> None:
    """Writes all files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_orders(folder)
    write_sentences(folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
