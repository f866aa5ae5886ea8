"""`python -m assay.engines.cuda.abi`: write native/cuda/abi.h anew."""

from assay.engines.cuda.abi.header import main

main()
