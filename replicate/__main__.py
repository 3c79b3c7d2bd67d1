"""`python -m replicate` is `replicate`."""

import os
import sys

from replicate.app.console import interrupts

__all__ = ["main"]


def main() -> int:
    """Runs the command line; Ctrl-C while it loads ends it as later on."""
    _open_missing()
    with interrupts.at_once():
        from replicate.app.command import cli
    return cli.main()


def _open_missing() -> None:
    """Lets nobody read what goes to a stream that whoever started this process has closed.

    Else the next file that is opened has its number, and what native code writes goes there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # has the lowest number that is free
        setattr(sys, name, open(number, "w" if number else "r", closefd=False))


if __name__ == "__main__":
    sys.exit(main())
