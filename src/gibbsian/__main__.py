"""`python -m gibbsian` is the command `gibbsian`."""

import sys

from gibbsian.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
