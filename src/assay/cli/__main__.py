"""`python -m assay.cli` is `assay`."""

import sys

from assay.cli import main

sys.exit(main())
