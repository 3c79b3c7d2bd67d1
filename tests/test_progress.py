"""Progress from Python is one row on a terminal, nothing elsewhere or where it is turned off."""

import io
import itertools
import re
import types

import pytest

import replicate
from replicate import estimator, progress
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.console import progress as console_progress
from tests.console.terminal import Terminal

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # a temporary folder


def instead_of_stderr(monkeypatch, stream):
    """Puts a stream in its place, for our own code alone: pytest puts one there as well."""
    for module in (messages, console_progress):
        monkeypatch.setattr(module, "sys", types.SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture(name="shown")
def stderr(monkeypatch):
    """Returns what stands for stderr, a terminal; a second passes from each look to the next."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr(messages, "_shows_progress", True)
    terminal = instead_of_stderr(monkeypatch, Terminal())
    seconds = itertools.count().__next__
    monkeypatch.setattr(console_progress, "time", types.SimpleNamespace(monotonic=seconds))
    return terminal


def model_fn(features, labels, mode):
    """The loss is w^2 / 2, w = 1 at first: a step of rate 0.5 halves w."""
    w = tf1.get_variable("w", initializer=1.0)
    loss = tf.reduce_mean(w * w * features) / 2.0
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())


def input_fn():
    return tf.data.Dataset.from_tensors(1.0).repeat(3).batch(1)


@pytest.fixture(name="model")
def make_model(tmp_path):
    def optimizer_fn():
        return tf1.train.GradientDescentOptimizer(0.5)

    replicated = replicate.replicate_model_fn(model_fn, optimizer_fn, devices=["/cpu:0"])
    return estimator.Estimator(replicated, model_dir=str(tmp_path))


def test_a_training_and_an_evaluation_leave_a_line_each(model, shown):
    model.train(input_fn)
    # The loss before the third step: w is 1 / 4.
    assert re.fullmatch(r"train 3  loss 0\.03125  \d\.\d steps/s", shown.written[-1])
    rows = [row for row in shown.getvalue().split("\033") if "train .." in row]
    assert len(rows) == 4  # after each step, whose number may be that before it, and at the end
    assert ". 3  loss" in rows[-1]
    model.evaluate(input_fn)
    assert re.fullmatch(r"evaluate 3  \d\.\d steps/s", shown.written[-1])
    assert len(shown.written) == 2
    assert shown.scrolls_all


def test_it_can_be_turned_off(model, shown):
    replicate.progress.show(False)
    model.train(input_fn)
    assert shown.getvalue() == ""


def test_what_is_no_terminal_gets_nothing(model, shown, monkeypatch):
    elsewhere = instead_of_stderr(monkeypatch, io.StringIO())
    model.train(input_fn)
    assert elsewhere.getvalue() == shown.getvalue() == ""


def test_without_a_stream_a_model_trains(model, monkeypatch):
    instead_of_stderr(monkeypatch, None)
    model.train(input_fn, hooks=[progress.ProgressHook(12)])


def test_a_hook_that_is_named_takes_the_place_of_our_own(model, shown):
    model.train(input_fn, hooks=[progress.ProgressHook(12)])
    (line,) = shown.written
    assert line.startswith("train 3/12  loss")


def test_a_file_gets_a_line_for_the_first_step_and_the_last_and_every_ten_seconds(model, shown):
    file = io.StringIO()
    # A look after each of 30 steps, a second apart: 0, 10 and 20 seconds after the first one.
    rows = tf.data.Dataset.from_tensors
    model.train(lambda: rows(1.0).repeat(30).batch(1), hooks=[progress.ProgressHook(file=file)])
    lines = file.getvalue().splitlines()
    assert [line.split()[:1] for line in lines] == [["train"]] * 4
    assert lines[-1].startswith("train 30  loss")
    assert not set("\r\033") & set(file.getvalue())
    assert shown.getvalue() == ""


class Failing(tf1.train.SessionRunHook):
    """Fails after the first step."""

    is_first = True

    def before_run(self, run_context):
        if not self.is_first:
            raise RuntimeError("a fault of the user's")
        self.is_first = False


def test_nothing_is_left_of_the_row_when_a_training_fails(model, shown):
    with pytest.raises(RuntimeError, match="a fault"):
        model.train(input_fn, hooks=[Failing()])
    (line,) = shown.written
    assert re.fullmatch(r"train \d  loss [.\d]+", line)
    assert shown.scrolls_all


def test_a_reader_that_has_gone_ends_no_training(model):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    model.train(input_fn, hooks=[progress.ProgressHook(file=Gone())])
    assert model.get_variable_value("global_step") == 3
