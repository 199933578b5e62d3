"""`python -m omni_portable.cli`, the command without its script."""

import sys

from omni_portable.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
