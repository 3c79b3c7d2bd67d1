"""`python -m replicate` is `replicate`."""

import sys

from replicate.console import interrupts, streams


def main() -> int:
    """Runs the command line; Ctrl-C while it loads ends it as it does later."""
    streams.open_missing()
    with interrupts.at_once():
        from replicate.app.command import cli
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
