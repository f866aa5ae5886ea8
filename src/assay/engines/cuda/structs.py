"""Names that the compiler imports: the argument structs of abi/arguments.py and the kernels of kernel_table.py.

The compiler imports this module alone, so that it does not depend on how the ABI is divided into files. Touch it when
a struct or a kernel is added."""

from assay.engines.cuda.abi.arguments import *  # noqa: F403
from assay.engines.cuda.kernel_table import *  # noqa: F403
