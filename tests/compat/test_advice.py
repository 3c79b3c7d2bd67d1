"""Advice that nobody can take is not shown; what a user's own code does is."""

import logging

import pytest

import replicate
from replicate import estimator
from replicate.compat import advice
from replicate.compat.tensorflow import tf

DEPRECATED = "From %s: %s (from %s) is deprecated and will be removed %s.\nInstructions:\n%s"
STANDS_STILL = "It seems that global step has not been increased. Current value: %s vs %s."
PARAMS = "Estimator's model_fn (%s) includes params argument, but params are not passed."


def without_params(features, labels, mode):
    pass


def with_params(features, labels, mode, params):
    pass


@pytest.fixture(name="logger")
def make_logger():
    """Returns a logger that drops advice, and keeps what is left."""
    logger = logging.Logger("theirs")
    logger.records = []
    logger.handle = lambda record: logger.filter(record) and logger.records.append(record)
    advice.drop(Tensorflow(logger))
    return logger


class Tensorflow:
    """The module, with another logger."""

    __file__ = tf.__file__

    def __init__(self, logger):
        self.get_logger = lambda: logger


def test_what_libraries_call_is_told_to_their_makers(logger):
    for place in (f"{tf.__file__}:3", f"{replicate.__file__}:3", "/home/me/train.py:3"):
        logger.warning(DEPRECATED, place, "load", "tensorflow", "soon", "Use that.")
    assert [record.args[0] for record in logger.records] == ["/home/me/train.py:3"]


@pytest.mark.parametrize("advised", ["Use tf.keras instead.", "tf.estimator.Estimator"])
def test_other_names_for_estimators_are_not_told(logger, advised):
    logger.warning(DEPRECATED, "/home/me/train.py:3", "Estimator", "it", "soon", advised)
    assert logger.records == []


def test_params_are_missed_where_a_function_names_them(logger):
    replicated = [
        replicate.replicate_model_fn(without_params),
        replicate.replicate_model_fn(with_params),
        replicate.replicate_model_fn(without_params, lambda params: None),
    ]
    for one in (with_params, *replicated):
        logger.warning(PARAMS, one)
    assert [record.args[0] for record in logger.records] == [with_params, *replicated[1:]]


def test_an_estimator_of_a_model_fn_without_params_warns_of_nothing(caplog, monkeypatch):
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    caplog.set_level(logging.WARNING, tf.get_logger().name)
    replicated = replicate.replicate_model_fn(without_params)
    estimator.Estimator(replicated)
    estimator.Estimator(replicated, params={})  # which it may be given all the same
    assert caplog.records == []
    estimator.Estimator(replicate.replicate_model_fn(with_params))
    assert "includes params argument" in caplog.text


def test_a_global_step_stands_still_where_it_does_so_twice(logger):
    # A step is read before its update, the one before it was read after it: 7, 7, then 8, 8.
    for value in (7, 8, 9, 9):
        logger.warning(STANDS_STILL, value, value)
    assert [record.args[0] for record in logger.records] == [9]


def test_a_temporary_folder_is_news_and_no_warning(logger):
    for level in (logging.WARNING, logging.INFO):
        logger.setLevel(level)
        logging.getLogger(logger.name).setLevel(level)
        logger.warning("Using temporary folder as model directory: %s", level)
    assert [record.args[0] for record in logger.records] == [logging.INFO]
