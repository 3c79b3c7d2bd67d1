"""`python -m replicate` is `replicate`."""

import sys

from replicate.app import cli

if __name__ == "__main__":
    sys.exit(cli.main())
