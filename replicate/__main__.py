"""`python -m replicate` is `replicate`."""

import sys

from replicate.app import cli

sys.exit(cli.main())
