"""The structs of abi/arguments.py and the table of kernel_table.py under one name, for the compiler."""

from assay.engines.cuda.abi.arguments import *  # noqa: F403
from assay.engines.cuda.kernel_table import *  # noqa: F403
