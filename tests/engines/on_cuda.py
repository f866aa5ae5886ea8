"""The device that tests of the cuda engine run on: the shim, or a real card under `make test-gpu`."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from assay.engines.contract import PAGE
from assay.engines.cuda import sources
from assay.engines.cuda.device import Device, Driver
from assay.engines.cuda.shim import Shim

ON_GPU = bool(os.environ.get("ASSAY_TEST_GPU"))
WEATHER = int(os.environ.get("ASSAY_SHIM_WEATHER", "0"))
if not ON_GPU and not shutil.which(os.environ.get("CXX", "c++")):
    pytest.skip("the shim needs a C++ compiler", allow_module_level=True)


def device() -> Device:
    return Driver(sources.Kernels) if ON_GPU else Shim(WEATHER)


def pages(first: int, n_slots: int) -> np.ndarray:
    return np.arange(first, first + -(-n_slots // PAGE), dtype=np.int32)
