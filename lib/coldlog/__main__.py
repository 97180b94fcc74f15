"""Run the command: `python -m coldlog`."""

import sys

from coldlog.command.main import main

if __name__ == "__main__":
    sys.exit(main())
