"""A name is replaced while somebody asks, in all threads, and put back when the last one leaves."""

import threading
import types

import pytest

from replicate.compat import replacing


class Base:
    def answer(self):
        return "own"


class Heir(Base):
    """Has its method from its base."""


def asked(own, wishes):
    return lambda self: [own(self), *wishes]


@pytest.fixture(name="replaced")
def make_replaced():
    yield replacing.Replaced(lambda: Heir, "answer", asked)
    assert "answer" not in vars(Heir)
    assert Heir().answer() == "own"


def test_all_that_is_asked_for_is_known_as_long_as_it_is(replaced):
    with replaced.by("a"):
        with replaced.by("b"):
            assert Heir().answer() == ["own", "a", "b"]
        assert Heir().answer() == ["own", "a"]
        assert Base().answer() == "own"


def test_what_stood_there_is_put_back_after_an_exception(replaced):
    with pytest.raises(ZeroDivisionError), replaced.by("a"), replaced.by("b"):
        raise ZeroDivisionError


def test_the_last_of_several_threads_puts_it_back(replaced):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with replaced.by("other"):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with replaced.by("ours"):
        thread.start()
        assert inside.wait(60)
    assert Heir().answer() == ["own", "other"]
    leave.set()
    thread.join()


def test_a_name_of_ones_own_is_put_back():
    owner = types.SimpleNamespace(answer=Base.answer)
    with replacing.Replaced(lambda: owner, "answer", asked).by("a"):
        assert owner.answer(None) == ["own", "a"]
    assert owner.answer is Base.answer


def test_where_there_is_nothing_nothing_is_replaced():
    with replacing.Replaced(lambda: None, "answer", asked).by("a"):
        pass
