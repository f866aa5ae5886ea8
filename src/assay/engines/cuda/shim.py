"""The shim: a device that runs the kernels on the host, from the same sources compiled by the host's C++ compiler.

Tests use it to check kernels and compiler without a GPU; it is slow. native/cuda/shim.cpp emulates blocks of threads.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.cuda.device import Launch, Played
from assay.engines.cuda.sources import folder, read_sources
from assay.engines.cuda.structs import KERNELS, MODULES
from assay.errors import AssayError


def build(sanitize: bool = False) -> Path:
    """The shared library of all kernels, compiled once for each state of the sources. A file lock makes other processes
    wait for the compilation."""
    path = _place(read_sources(), sanitize, ".so")
    if not path.exists():
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _compile(path, sanitize)
    return path


def _place(content: bytes, sanitize: bool, suffix: str) -> Path:
    """Where the compiled form of these sources is kept."""
    key = hashlib.sha256(content).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"assay-shim-{os.getuid()}-{key}{'-sanitize' * sanitize}{suffix}"


def _compile(path: Path, sanitize: bool) -> None:
    """Compile what has changed, then link. An object is kept for each state of its source and of the headers."""
    compiler, flags = os.environ.get("CXX", "c++"), ["-std=c++20", "-ffp-contract=off", "-fPIC", "-w"]
    if sanitize:
        flags += ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    if os.uname().machine == "x86_64":
        flags += ["-mfma", "-mf16c"]
    headers = b"".join(header.read_bytes() for header in sorted(folder().glob("*.h")))

    def run(*arguments: str) -> None:
        done = subprocess.run([compiler, *flags, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssayError(f"shim: the host's compiler failed: {done.stderr.strip().splitlines()[0]}")

    def compiled(source: Path) -> str:
        level = "-O2" if source.stem == "shim" else "-O1"  # the scheduler of threads is small, and takes most time
        command = " ".join((compiler, *flags, level)).encode()
        to = _place(source.read_bytes() + headers + command, sanitize, f"-{source.stem}.o")
        if not to.exists():
            made = to.with_suffix(f".{os.getpid()}.part")
            run(level, "-DASSAY_SHIM", "-x", "c++", "-c", str(source), "-o", str(made))
            made.rename(to)
        return str(to)

    sources = [folder() / "shim.cpp", *(folder() / f"{module}.cu" for module in MODULES)]
    sources.sort(key=lambda source: source.stem != "gemm_tensor")  # first, because it takes longest
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    made = path.with_suffix(".part")
    run("-shared", "-Wl,-Bsymbolic", *objects, "-o", str(made))  # calls within the library need no table
    made.rename(path)


class Shim:
    """A device in host memory; a launch runs its kernel immediately.

    `weather` seeds disturbances that expose races: late copies, lagging warps, garbage in new memory (shim.cpp).
    With ASSAY_SHIM_SANITIZE in the environment, kernels are compiled with sanitizers. The process must then have been
    started with the sanitizers' library (`make sanitize`).
    """

    name = "shim"
    multiprocessors = 2
    shared_bytes = 227 << 10
    together = True

    def __init__(self, weather: int = 0) -> None:
        self.weather = weather
        self.library = ctypes.CDLL(str(build("ASSAY_SHIM_SANITIZE" in os.environ)))
        self.library.shim_alloc.restype = ctypes.c_void_p
        self.held: dict[int, int] = {}

    def use(self) -> None: ...

    def memory(self) -> tuple[int, int]:
        return 1 << 33, 1 << 33

    def alloc(self, size: int, what: str) -> int:
        self.library.shim_weather(self.weather)
        at = int(self.library.shim_alloc(ctypes.c_size_t(size)))
        self.held[at] = size
        return at

    def free(self, at: int) -> None:
        self._guard(at, self.held.pop(at), False)
        self.library.shim_free(ctypes.c_void_p(at))

    def _guard(self, at: int, size: int, closed: bool) -> None:
        self.library.shim_guard(ctypes.c_void_p(at), ctypes.c_size_t(size), int(closed))

    def pinned(self, size: int) -> NDArray[np.uint8]:
        return np.empty(size, np.uint8)

    def zero(self, at: int, size: int) -> None:
        ctypes.memset(at, 0, size)

    def upload(self, at: int, data: NDArray[Any]) -> None:
        ctypes.memmove(at, data.ctypes.data, data.nbytes)

    def load(self, at: int, data: NDArray[Any]) -> None:
        self.upload(at, data)

    def loaded(self) -> None: ...

    def download(self, data: NDArray[Any], at: int) -> None:
        ctypes.memmove(data.ctypes.data, at, data.nbytes)

    def copy(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def prepare(self, kernels: Iterable[str]) -> None: ...
    def ready(self, kernels: Iterable[str]) -> None: ...

    def resident(self, kernel: str, threads: int, shared: int) -> int:
        return 2

    def launch(self, launch: Launch, early: bool) -> None:
        kind, most = KERNELS[launch.kernel]
        if not isinstance(launch.args, kind) or launch.threads > most or launch.shared > self.shared_bytes:
            raise AssayError(f"shim: {launch.kernel}: the launch does not fit the kernel")
        arena, open_ = launch.arena, launch.values
        if arena:  # guard the program's memory except the values of this launch
            self._guard(arena, self.held[arena], True)
            for at, size in open_:
                self._guard(at, size, False)
        self.library.shim_weather(self.weather)
        run = getattr(self.library, f"shim_{launch.kernel}")
        run((ctypes.c_int * 3)(*launch.grid), launch.threads, launch.shared, ctypes.byref(launch.args))
        if arena:
            self._guard(arena, self.held[arena], False)

    def capture(self, record: Callable[[], None]) -> Played:
        return _Again(record)

    def mark(self, i: int) -> None: ...
    def reach(self, i: int) -> None: ...
    def sync(self) -> None: ...

    def close(self) -> None:
        for at in list(self.held):
            self.free(at)


@dataclass
class _Again:
    """A captured graph: calling it records, and so runs, the same work again."""

    record: Callable[[], None]

    def __call__(self) -> None:
        self.record()

    def close(self) -> None: ...
