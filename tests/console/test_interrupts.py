"""What signals do while something is at work."""

import os
import signal
import threading
import time

import pytest

from replicate.console import interrupts


def wait_for(condition):
    """Waits until a condition holds: what a thread is about to do."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_to_stop(monkeypatch, capsys, number):
    before = signal.getsignal(number)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)  # nobody ignores SIGHUP
    with interrupts.StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        wait_for(lambda: stop.requested)
    monkeypatch.undo()
    assert capsys.readouterr().err == f"{interrupts.STOPPING}\n"
    assert signal.getsignal(number) == before


def test_the_second_signal_ends_the_process_at_once(monkeypatch):
    done, left = [], threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: (done.append(code), left.set()))
    monkeypatch.setattr(interrupts, "LAST_DEEDS", [lambda: done.append("last")])
    with interrupts.StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: stop.requested)
        os.kill(os.getpid(), signal.SIGTERM)
        assert left.wait(60)
    assert done == ["last", interrupts.INTERRUPTED]


def test_other_signals_stop_nothing(monkeypatch):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        with interrupts.StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_for(lambda: heard)
        assert not stop.requested  # the listener has heard all, for it has ended
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_only_the_main_thread_hears_signals():
    entered = []

    def work():
        with interrupts.StopRequest() as stop, interrupts.terminable():
            entered.append((stop.requested, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [(False, before)]


@pytest.mark.parametrize(
    ("number", "text"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_a_signal_is_an_interruption_whatever_a_library_makes_of_it(number, text):
    def library():
        with interrupts.terminable():
            try:
                os.kill(os.getpid(), number)
                wait_for(lambda: False)
            except interrupts.Interrupted:
                raise ValueError("an error of the library's") from None

    with pytest.raises(interrupts.Interrupted, match=f"^{text}$"):
        library()


def test_an_error_without_a_signal_stays_what_it_is():
    with pytest.raises(ValueError, match=r"^wrong$"), interrupts.terminable():
        raise ValueError("wrong")
