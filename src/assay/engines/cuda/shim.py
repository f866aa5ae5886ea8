"""The kernels on the host: the same sources, compiled by the host's compiler. For tests, not for speed."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.cuda.device import Launch
from assay.engines.cuda.sources import folder, read_sources
from assay.engines.cuda.structs import KERNELS
from assay.errors import AssayError


def build() -> Path:
    """The shared library of all kernels, compiled once for each state of the sources."""
    key = hashlib.sha256(read_sources()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"assay-shim-{os.getuid()}-{key}.so"
    if not path.exists():
        made = path.with_suffix(f".{os.getpid()}.so")
        flags = ["-O1", "-std=c++20", "-ffp-contract=off", "-shared", "-fPIC", "-DASSAY_SHIM", "-w"]
        if os.uname().machine == "x86_64":
            flags.append("-mfma")
        command = [os.environ.get("CXX", "c++"), *flags, str(folder() / "shim.cpp"), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssayError(f"shim: the host's compiler failed: {done.stderr.strip().splitlines()[0]}")
        made.rename(path)
    return path


class Shim:
    """A device whose memory is the host's and whose kernels run at once."""

    name = "shim"
    multiprocessors = 2
    shared_bytes = 227 << 10

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(build()))
        self.held: dict[int, NDArray[np.uint8]] = {}

    def use(self) -> None: ...

    def memory(self) -> tuple[int, int]:
        return 1 << 33, 1 << 33

    def alloc(self, size: int, what: str) -> int:
        room = np.full(max(size, 16) + 64, 0xA5, np.uint8)  # garbage, as on a GPU
        at = -(-room.ctypes.data // 64) * 64
        self.held[at] = room
        return at

    def free(self, at: int) -> None:
        del self.held[at]

    def pinned(self, size: int) -> NDArray[Any]:
        return np.empty(size, np.uint8)

    def zero(self, at: int, size: int) -> None:
        ctypes.memset(at, 0, size)

    def upload(self, at: int, data: NDArray[Any]) -> None:
        ctypes.memmove(at, data.ctypes.data, data.nbytes)

    def download(self, data: NDArray[Any], at: int) -> None:
        ctypes.memmove(data.ctypes.data, at, data.nbytes)

    def copy(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def resident(self, kernel: str, threads: int, shared: int) -> int:
        return 2

    def launch(self, launch: Launch, early: bool) -> None:
        kind, most = KERNELS[launch.kernel]
        if not isinstance(launch.args, kind) or launch.threads > most or launch.shared > self.shared_bytes:
            raise AssayError(f"shim: {launch.kernel}: the launch does not fit the kernel")
        run = getattr(self.library, f"shim_{launch.kernel}")
        run((ctypes.c_int * 3)(*launch.grid), launch.threads, launch.shared, ctypes.byref(launch.args))

    def capture(self, record: Callable[[], None]) -> Callable[[], None]:
        return record

    def sync(self) -> None: ...

    def close(self) -> None:
        self.held.clear()
