"""``python -m precflow``: the same as the command ``precflow``."""

import sys

from precflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
