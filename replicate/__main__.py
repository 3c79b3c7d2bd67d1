"""`python -m replicate` is `replicate`."""

import sys

from replicate.app import interrupts

__all__ = ["main"]


def main() -> int:
    """Runs the command line; Ctrl-C while it loads ends it as later on."""
    with interrupts.at_once():
        from replicate.app import cli
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
