"""The binary interface between the compiler (Python) and the kernels (native/cuda), written once.

`enumerations` has enums, flags and constants. `arguments` has the structs. `shared_memory` has the bytes of shared
memory that each kernel needs. From these tables come the ctypes classes and native/cuda/abi.h, which every kernel
includes:

    python -m assay.engines.cuda.abi            write native/cuda/abi.h anew

Touch this package when a kernel takes another argument, an enum gets a member, or the layout of shared memory changes.
tests/engines/test_cuda_abi.py fails while the committed header differs from these tables. It also fails where the shim
(the kernels compiled for the host, engines/cuda/shim.py) reports another size or offset of a field than ctypes.
"""
