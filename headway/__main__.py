"""`python -m headway` is the command `headway`."""

import sys

from headway.cli import main

if __name__ == "__main__":
    sys.exit(main())
