"""``python -m npformer`` is the command ``npformer``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
