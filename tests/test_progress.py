"""Progress from Python is one line on a terminal, nothing elsewhere or where it is turned off."""

import io
import itertools
import re
import types

import pytest

import replicate
from replicate import estimator, progress
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # a temporary folder


class Terminal(io.StringIO):
    def isatty(self):
        return True


def instead_of_stderr(monkeypatch, stream):
    """Puts a stream in its place, for our own code alone: pytest puts one there as well."""
    for module in (messages, progress):
        monkeypatch.setattr(module, "sys", types.SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture(name="shown")
def stderr(monkeypatch):
    """Returns what stands for stderr, a terminal; a second passes from each look to the next."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(messages, "_shows_progress", True)
    terminal = instead_of_stderr(monkeypatch, Terminal())
    seconds = itertools.count().__next__
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=seconds))
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


def states(shown):
    """Returns the states of the line; steps and losses may be of before or after the step."""
    return shown.getvalue().split("\r\033[K")


def test_a_training_and_an_evaluation_have_a_line_each(model, shown):
    model.train(input_fn)
    nothing, *changing, last = states(shown)
    assert nothing == ""
    assert len(changing) == 3  # after each step
    # The loss before the third step: w is 1 / 4.
    assert re.fullmatch(r"train 3  loss 0\.03125  \d\.\d steps/s\n", last)
    shown.truncate(shown.seek(0))
    model.evaluate(input_fn)
    assert re.fullmatch(r"evaluate 3  \d\.\d steps/s\n", states(shown)[-1])


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
    assert all(state.partition("  ")[0].endswith("/12") for state in states(shown)[1:])
    assert shown.getvalue().count("\n") == 1


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


def test_a_terminal_that_cannot_write_over_a_line_gets_lines(monkeypatch, shown):
    monkeypatch.setenv("TERM", "dumb")
    assert not messages.shows_progress()
    assert not progress.ProgressHook(file=shown)._is_on_terminal


class Failing(tf1.train.SessionRunHook):
    """Fails after the first step."""

    is_first = True

    def before_run(self, run_context):
        if not self.is_first:
            raise RuntimeError("a fault of the user's")
        self.is_first = False


def test_the_line_is_at_its_end_when_a_training_fails(model, shown):
    with pytest.raises(RuntimeError, match="a fault"):
        model.train(input_fn, hooks=[Failing()])
    assert re.fullmatch(r"train \d  loss [.\d]+\n", states(shown)[-1])


def test_a_reader_that_has_gone_ends_no_training(model):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    model.train(input_fn, hooks=[progress.ProgressHook(file=Gone())])
    assert model.get_variable_value("global_step") == 3


def test_a_narrow_terminal_gets_a_line_that_it_can_hold(model, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "12")
    model.train(input_fn)
    assert states(shown)[-1] == "train 3  lo\n"
