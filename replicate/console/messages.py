"""What the package tells people on stderr: messages once a process, wrapped at words; progress."""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from typing import TextIO

log = logging.getLogger("replicate")
_said: set[str] = set()
_shows_progress = True
_shows_news = True
_NO_ESTIMATOR = re.compile(r"module 'tensorflow[\w.]*' has no attribute 'estimator'")
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")
_LISTINGS = ("Traceback", "Original stack trace", "Detected at node", "Hint: ")
_MAX_LINES = 3
_PREFIXES = (  # what TensorFlow puts before a message, in this order
    re.compile(r"^Graph execution error:\s*"),
    re.compile(r"^\d+ root error\(s\) found\.\s*"),
    re.compile(r"^\(0\) [A-Z_]+: "),
    re.compile(r"^Error in user-defined function passed to \S+ transformation with iterator: "),
    re.compile(r"^Iterator::\S+: "),
    re.compile(r"^Name: <unknown>, "),
)
CLEAR_LINE = "\r\033[K"
# What TensorFlow logs whatever its level is set to, for Python and grep.
_LOGGED = (
    "^(WARNING: All log messages before|[IWE][0-9]{4} |[0-9]{4}-[0-9]{2}-[0-9]{2} [^ ]+ [IWE] "
    "|To enable the foll)"
)


def without_estimators(error: BaseException) -> str:
    """Returns what to do where an error says that TensorFlow has no Estimators, else nothing."""
    if not _NO_ESTIMATOR.search(str(error)):
        return ""
    return (
        "TensorFlow 2.16 and later have none. Take it from replicate.estimator, or call "
        "replicate.estimator.install() ahead of that line."
    )


def first_lines(error: BaseException) -> str:
    """Returns the message without the node and stack listings of TensorFlow around it."""
    lines = str(getattr(error, "message", None) or error).splitlines()
    nodes = [index for index, line in enumerate(lines) if line.startswith("Node: ")]
    if nodes:  # the listing came first
        lines = lines[nodes[-1] + 1 :]
    kept = []
    for line in map(str.strip, lines):
        if line.startswith((*_LISTINGS, "(1) ")):
            break
        if line and not line.startswith("[["):
            kept.append(line)
    text = " ".join(kept[:_MAX_LINES])
    for prefix in _PREFIXES:
        text = prefix.sub("", text)
    return text


def warn(text: str, page: str) -> None:
    """Warns, once a process: an Estimator builds its model again and again.

    Args:
        text: One or two sentences.
        page: Where there is more to know, in the repository's docs, e.g. `python.md#options`.
    """
    if text not in _said:
        _said.add(text)
        log.warning("%s See docs/%s in replicate's repository.", text, page)


def for_stream(text: str, stream: TextIO) -> str:
    """Returns a text as a stream shows it: a terminal in lines that end at words.

    What would steer the terminal is spelt out: a file that is told of may have had it.
    """
    if not stream.isatty():
        return text
    shown = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))
    return at_words(shown, shutil.get_terminal_size().columns)


def at_words(text: str, columns: int) -> str:
    """Returns a text in lines of so many columns, which end at words; a longer word is a line."""
    wrapper = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(wrapper.fill, text.splitlines()))


class _Stderr(logging.Handler):
    """Shows what Python shows of a logger that nobody has set up, but wrapped at words."""

    def emit(self, record: logging.LogRecord) -> None:
        """See base class."""
        if logging.root.handlers or log.handlers != [self]:
            return
        try:
            sys.stderr.write(for_stream(self.format(record), sys.stderr) + "\n")
        except Exception:  # noqa: BLE001 - as each handler of logging
            self.handleError(record)


_stderr = _Stderr(logging.WARNING)
log.addHandler(_stderr)


def tell(text: str) -> None:
    """Tells, once a process, what everybody is to know: also who has not set up logging.

    Args:
        text: One line.
    """
    if text in _said:
        return
    _said.add(text)
    is_set_up = bool(logging.root.handlers) or log.handlers != [_stderr]
    if is_set_up or not _shows_news or log.getEffectiveLevel() > logging.WARNING:
        log.info("%s", text)
    else:
        _stderr.handle(log.makeRecord(log.name, logging.INFO, "", 0, text, (), None))


def show_news(wanted: bool) -> None:
    """Says whether `tell` shows what it tells where nobody has set up logging: at first it does."""
    global _shows_news
    _shows_news = wanted


def show_progress(wanted: bool) -> None:
    """Says whether progress is shown on a terminal: at first it is."""
    global _shows_progress
    _shows_progress = wanted


def shows_progress() -> bool:
    """Tells whether progress is shown: where that is wanted, and stderr is a terminal."""
    return _shows_progress and is_terminal(sys.stderr)


def is_terminal(stream: TextIO | None) -> bool:
    """Tells whether a stream is a terminal on which a line can be written over."""
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return stream is not None and stream.isatty() and not is_dumb


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """While entered, a library is imported, which takes seconds: a terminal is told so.

    TensorFlow logs to stderr before any of its settings can prevent that: such lines are left out,
    but where the import fails. What others write there comes when it is over, also where native
    code ends the process. Where there is no file to hold lines back, they come as they are.
    """
    with contextlib.ExitStack() as leave:
        with contextlib.suppress(OSError):  # no stderr, or no folder for files
            leave.enter_context(_held_back(f"loading {name} ..." if shows_progress() else ""))
        yield


@contextlib.contextmanager
def _held_back(told: str) -> Iterator[None]:
    """While entered, a text is on the screen, and what comes to stderr is held back."""
    os.fstat(2)  # else the file below would be stderr
    clear = CLEAR_LINE if told else ""
    number, path = tempfile.mkstemp()
    with open(number, "wb"), open(path, "rb") as noise:
        os.unlink(path)
        show = f"words=$(grep -avE '{_LOGGED}') && printf '{clear}%s\\n' \"$words\""
        has_failed = True
        try:
            with redirected(2, number) as shown, at_death(show, noise.fileno(), shown):
                os.write(shown, told.encode())
                yield
            has_failed = False
        finally:
            lines = [line for line in noise if has_failed or not re.match(_LOGGED.encode(), line)]
            with contextlib.suppress(OSError):  # its reader may be gone
                os.write(2, b"".join([clear.encode(), *lines]))


@contextlib.contextmanager
def at_death(command: str, source: int, shown: int) -> Iterator[None]:
    """While entered, a shell waits for this process to die, and then runs a command.

    A thread of ours could not: native code that fails a check writes the reason, and aborts.

    Args:
        command: What it runs.
        source: A file descriptor, its stdin.
        shown: Another one, its stdout.
    """
    # NOTE: the end of a pipe tells that this process is dead. It is the shell's stderr, for
    # some shells take no redirection from a descriptor above 9.
    with contextlib.ExitStack() as leave:
        heard, told = os.pipe()
        leave.callback(os.close, told)
        with open(heard, "rb"), contextlib.suppress(OSError):  # this machine may have no shell
            shell = leave.enter_context(
                subprocess.Popen(
                    ["/bin/sh", "-c", f"cat <&2; {command}"],
                    stdin=source,
                    stdout=shown,
                    stderr=heard,
                    start_new_session=True,  # Ctrl-C is not for it
                )
            )
            leave.callback(shell.kill)
        yield


@contextlib.contextmanager
def redirected(number: int, target: int) -> Iterator[int]:
    """While entered, a file descriptor leads where another one does, for native code as well.

    Args:
        number: The descriptor: 1 or 2.
        target: The other descriptor.

    Yields:
        A descriptor that leads where `number` led before.
    """
    _flush()
    before = os.dup(number)
    try:
        os.dup2(target, number)
        yield before
    finally:
        _flush()
        os.dup2(before, number)
        os.close(before)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
