"""The stack of modes."""

import threading

import pytest

from replicate.strategy import context


def test_empty_stack_has_no_mode():
    assert context.current() is None


def test_innermost_mode_is_current():
    outer, inner = context.Mode("outer"), context.Mode("inner", tower="t")
    with context.entered(outer):
        with context.entered(inner) as entered:
            assert entered is inner
            assert context.current() is inner
        assert context.current() is outer
    assert context.current() is None


def test_mode_ends_when_an_exception_passes():
    with pytest.raises(KeyError), context.entered(context.Mode("s")):
        raise KeyError("x")
    assert context.current() is None


def test_each_thread_has_its_own_stack():
    seen = []
    with context.entered(context.Mode("s")):
        thread = threading.Thread(target=lambda: seen.append(context.current()))
        thread.start()
        thread.join()
    assert seen == [None]
