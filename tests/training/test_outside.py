"""What a model_fn keeps outside of itself, after a call that does not count."""

import functools

from replicate.training import outside

KEPT = {"calls": 0}


def closing(held, number):
    def call():
        nonlocal number
        number += 1
        held.append(number)
        KEPT["calls"] += 1
        return held, number

    return call


class Model:
    def __init__(self):
        self.layer, self.seen = None, []

    def __call__(self):
        self.layer = self.layer or "a layer"
        self.seen.append(self.layer)

    def method(self):
        self()


def test_closures_and_globals_are_put_back():
    held: list = []
    call = closing(held, 0)
    with outside.untouched(functools.partial(call)):
        assert call() == ([1], 1)
    assert (held, KEPT) == ([], {"calls": 0})
    assert call() == ([1], 1)
    KEPT["calls"] = 0


def test_objects_are_put_back():
    for of in (lambda model: model, lambda model: model.method):
        model = Model()
        with outside.untouched(of(model)):
            of(model)()
            assert model.seen == ["a layer"]
        assert (model.layer, model.seen) == (None, [])
