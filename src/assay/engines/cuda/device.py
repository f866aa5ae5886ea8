"""The device interface: memory, copies, launches and graphs; and a GPU through the CUDA driver.

`Device` is the interface. `Driver` implements it for a GPU, and shim.py on the host for tests. Touch this module when
the engine needs another service of the CUDA driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.extras import install

# Loading weights: bytes of a pinned buffer, number of buffers in flight, and threads that fill one.
_PIECE, _PLACES, _FILLERS = 16 << 20, 3, 8


@dataclass
class Launch:
    """One kernel launch: its grid, threads of a block, arguments, and bytes of shared memory."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    args: ctypes.Structure
    shared: int = 0
    together: bool = False  # cooperative: all blocks of threads are resident at the same time
    arena: int = 0  # address of its program's memory; 0: none
    values: tuple[tuple[int, int], ...] = ()  # addresses and bytes in the arena that it may touch
    prepared: Any = field(default=None, repr=False)  # the driver's form of it, built at the first launch


@dataclass
class HostCall:
    """Work of the host between two launches: addresses and widths of the rows that it reads and writes, by node."""

    part: str
    domain: str
    reads: dict[str, tuple[int, int]]
    writes: dict[str, tuple[int, int]]


class DeviceError(AssayError):
    """The device refused a call or is lost; the current request fails with this message."""


class Played(Protocol):
    """A captured CUDA graph, or its stand-in: calling it queues the work again."""

    def __call__(self) -> None: ...
    def close(self) -> None: ...


class Device(Protocol):
    """The services that the engine uses. Work is queued on one stream and runs in order."""

    name: str
    multiprocessors: int
    shared_bytes: int  # most shared memory of a block of threads
    together: bool  # whether megakernels run: cooperative launches, and bulk copies into shared memory (walk.cu)

    def use(self) -> None:
        """Make the device current in the calling thread."""
        ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        ...

    def alloc(self, size: int, what: str) -> int: ...
    def free(self, at: int) -> None: ...
    def pinned(self, size: int) -> NDArray[np.uint8]:
        """Page-locked host memory, valid until the device is closed."""
        ...

    def zero(self, at: int, size: int) -> None: ...
    def upload(self, at: int, data: NDArray[Any]) -> None: ...
    def load(self, at: int, data: NDArray[Any]) -> None:
        """Upload a large array through pinned buffers, which `loaded` frees."""
        ...

    def loaded(self) -> None: ...
    def download(self, data: NDArray[Any], at: int) -> None: ...
    def copy(self, to: int, source: int, size: int) -> None: ...
    def resident(self, kernel: str, threads: int, shared: int) -> int:
        """Blocks of threads that are resident on a multiprocessor at once."""
        ...

    def prepare(self, kernels: Iterable[str]) -> None:
        """Begin to make the machine code of these kernels; the first launch of each waits for it."""
        ...

    def ready(self, kernels: Iterable[str]) -> None:
        """Load these kernels: the driver may refuse to load one while a graph is captured."""
        ...

    def launch(self, launch: Launch, early: bool) -> None:
        """Queue a kernel. `early`: it may begin before the previous kernel has ended (programmatic launch)."""
        ...

    def capture(self, record: Callable[[], None]) -> Played:
        """Capture the work that `record` queues as a graph."""
        ...

    def mark(self, i: int) -> None:
        """Record event `i` after the work queued so far."""
        ...

    def reach(self, i: int) -> None:
        """Wait for event `i`."""
        ...

    def sync(self) -> None: ...
    def close(self) -> None: ...


class MachineCode(Protocol):
    """Machine code by unit, a file of one kernel or several (sources.py, Kernels)."""

    def unit(self, kernel: str) -> str: ...
    def begin(self, kernels: Iterable[str]) -> None: ...
    def code(self, unit: str) -> bytes: ...


class Driver:
    """A GPU through the CUDA driver."""

    def __init__(self, kernels: Callable[[str], MachineCode], index: int = 0) -> None:
        try:
            driver: Any = import_module("cuda.bindings.driver")
        except ImportError:
            raise AssayError(f"engine cuda: cuda-bindings is not installed; {install('cuda')}") from None
        self.cu = driver
        try:
            found = driver.cuInit(0)[0]
        except RuntimeError:
            raise AssayError("engine cuda: no NVIDIA driver on this machine (libcuda.so.1); use --engine cpu") from None
        if found != driver.CUresult.CUDA_SUCCESS:
            raise AssayError(f"engine cuda: the driver finds no GPU ({found.name}); use --engine cpu")
        self.device = self._checked(driver.cuDeviceGet(index))
        self.context = self._checked(driver.cuDevicePrimaryCtxRetain(self.device))
        self._checked(driver.cuCtxSetCurrent(self.context))
        attribute = driver.CUdevice_attribute

        def ask(what: Any) -> int:
            return int(self._checked(driver.cuDeviceGetAttribute(what, self.device)))

        major = ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.multiprocessors = ask(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.shared_bytes = ask(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.early = self.together = major >= 9
        title = self._checked(driver.cuDeviceGetName(128, self.device))
        self.name = f"{title.split(bytes(1))[0].decode()} (sm_{major}{minor})"
        self.kernels = kernels(f"sm_{major}{minor}")
        self.modules: dict[str, Any] = {}  # loaded, by unit
        self.stream = self._checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.functions: dict[str, Any] = {}
        self.owned: list[int] = []
        self.events: dict[int, Any] = {}
        self.places: list[NDArray[np.uint8]] = []
        self.pieces = 0

    def _checked(self, result: Sequence[Any]) -> Any:
        error = result[0]
        if error != self.cu.CUresult.CUDA_SUCCESS:
            raise DeviceError(f"engine cuda: the driver says {error.name}")
        return result[1] if len(result) == 2 else result[1:]

    def use(self) -> None:
        """Contexts are current per thread, so the computing thread sets its own."""
        self._checked(self.cu.cuCtxSetCurrent(self.context))

    def memory(self) -> tuple[int, int]:
        free, total = self._checked(self.cu.cuMemGetInfo())
        return int(free), int(total)

    def alloc(self, size: int, what: str) -> int:
        result, at = self.cu.cuMemAlloc(max(size, 256))
        if result != self.cu.CUresult.CUDA_SUCCESS:
            if result != self.cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise DeviceError(f"engine cuda: {what}: the driver says {result.name}")
            free = self.memory()[0] >> 20
            raise DeviceError(f"engine cuda: no memory for {what} ({size >> 20} MB, {free} MB free on {self.name})")
        return int(at)

    def free(self, at: int) -> None:
        self.cu.cuMemFree(at)

    def pinned(self, size: int) -> NDArray[np.uint8]:
        at = int(self._checked(self.cu.cuMemHostAlloc(max(size, 256), 0)))
        self.owned.append(at)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(at))

    def zero(self, at: int, size: int) -> None:
        self._checked(self.cu.cuMemsetD8Async(at, 0, size, self.stream))

    def upload(self, at: int, data: NDArray[Any]) -> None:
        self._checked(self.cu.cuMemcpyHtoDAsync(at, data.ctypes.data, data.nbytes, self.stream))

    def load(self, at: int, data: NDArray[Any]) -> None:
        """Through pinned memory, which several threads fill, because one thread copies slower than the device reads."""
        if not self.places:
            self.places = [self.pinned(_PIECE) for _ in range(_PLACES)]
            self.team = ThreadPoolExecutor(_FILLERS)
        flat = data.reshape(-1).view(np.uint8)
        for first in range(0, flat.size, _PIECE):
            piece = flat[first : first + _PIECE]
            number = -1 - self.pieces % _PLACES
            place = self.places[number][: piece.size]
            if self.pieces >= _PLACES:
                self.reach(number)
            self.pieces += 1
            cuts = [piece.size * i // _FILLERS for i in range(_FILLERS + 1)]
            parts = [(place[a:b], piece[a:b]) for a, b in pairwise(cuts)]
            list(self.team.map(lambda pair: np.copyto(*pair), parts))
            self._checked(self.cu.cuMemcpyHtoDAsync(at + first, place.ctypes.data, piece.size, self.stream))
            self.mark(number)

    def loaded(self) -> None:
        self.sync()
        for place in self.places:
            self.owned.remove(place.ctypes.data)
            self.cu.cuMemFreeHost(place.ctypes.data)
        if self.places:
            self.team.shutdown()
        self.places, self.pieces = [], 0

    def download(self, data: NDArray[Any], at: int) -> None:
        self._checked(self.cu.cuMemcpyDtoHAsync(data.ctypes.data, at, data.nbytes, self.stream))

    def copy(self, to: int, source: int, size: int) -> None:
        self._checked(self.cu.cuMemcpyDtoDAsync(to, source, size, self.stream))

    def _function(self, kernel: str) -> Any:
        if kernel not in self.functions:
            unit = self.kernels.unit(kernel)
            if unit not in self.modules:
                self.kernels.begin([kernel])
                self.modules[unit] = self._checked(self.cu.cuModuleLoadData(self.kernels.code(unit)))
            f = self._checked(self.cu.cuModuleGetFunction(self.modules[unit], kernel.encode()))
            most = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._checked(self.cu.cuFuncSetAttribute(f, most, self.shared_bytes - 1024))
            carveout = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            self._checked(self.cu.cuFuncSetAttribute(f, carveout, 100))
            self.functions[kernel] = f
        return self.functions[kernel]

    def prepare(self, kernels: Iterable[str]) -> None:
        self.kernels.begin(kernels)

    def ready(self, kernels: Iterable[str]) -> None:
        for kernel in kernels:
            self._function(kernel)

    def resident(self, kernel: str, threads: int, shared: int) -> int:
        ask = self.cu.cuOccupancyMaxActiveBlocksPerMultiprocessor
        return max(1, int(self._checked(ask(self._function(kernel), threads, shared))))

    def _prepare(self, launch: Launch, early: bool) -> Any:
        config = self.cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes = launch.shared
        config.hStream = self.stream
        if launch.together or (early and self.early):
            attribute = self.cu.CUlaunchAttribute()
            if launch.together:
                attribute.id = self.cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
                attribute.value.cooperative = 1
            else:
                attribute.id = self.cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(launch.args))
        function = self._function(launch.kernel)
        return config, function, pointers, ctypes.addressof(pointers)

    def launch(self, launch: Launch, early: bool) -> None:
        if launch.prepared is None:
            launch.prepared = self._prepare(launch, early)
        config, function, _, address = launch.prepared
        error = self.cu.cuLaunchKernelEx(config, function, address, 0)[0]
        if error != self.cu.CUresult.CUDA_SUCCESS:
            raise DeviceError(f"engine cuda: {launch.kernel}: the driver says {error.name}")

    def capture(self, record: Callable[[], None]) -> Played:
        mode = self.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._checked(self.cu.cuStreamBeginCapture(self.stream, mode))
        try:
            record()
        except BaseException:  # its message says more than that of the capture, which it has made invalid
            self.cu.cuStreamEndCapture(self.stream)
            raise
        graph = self._checked(self.cu.cuStreamEndCapture(self.stream))
        ready = self._checked(self.cu.cuGraphInstantiate(graph, 0))
        self._checked(self.cu.cuGraphDestroy(graph))
        return _Graph(self, ready)

    def mark(self, i: int) -> None:
        if i not in self.events:
            self.events[i] = self._checked(self.cu.cuEventCreate(self.cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self._checked(self.cu.cuEventRecord(self.events[i], self.stream))

    def reach(self, i: int) -> None:
        self._checked(self.cu.cuEventSynchronize(self.events[i]))

    def sync(self) -> None:
        self._checked(self.cu.cuStreamSynchronize(self.stream))

    def close(self) -> None:
        for at in self.owned:
            self.cu.cuMemFreeHost(at)
        self.owned.clear()
        for event in self.events.values():
            self.cu.cuEventDestroy(event)
        for module in self.modules.values():
            self.cu.cuModuleUnload(module)
        self.cu.cuDevicePrimaryCtxRelease(self.device)


@dataclass
class _Graph:
    """An instantiated CUDA graph."""

    driver: Driver
    ready: Any

    def __call__(self) -> None:
        self.driver._checked(self.driver.cu.cuGraphLaunch(self.ready, self.driver.stream))

    def close(self) -> None:
        self.driver.cu.cuGraphExecDestroy(self.ready)
