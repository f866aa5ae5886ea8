"""What the engine asks of a device: memory, launches, graphs. Two answer: the driver of a GPU, and the shim."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.engines.cuda.structs import MODULES
from assay.errors import AssayError
from assay.system.extras import install

_PIECE, _PLACES, _FILLERS = 16 << 20, 3, 8  # of the host's memory on its way at a time, and who brings it


@dataclass
class Launch:
    """One kernel: its grid, threads a block, bytes of shared memory, and its arguments."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    args: ctypes.Structure
    shared: int = 0
    together: bool = False  # all blocks of threads run at the same time
    arena: int = 0  # the memory of its program, if it has one ...
    values: tuple[tuple[int, int], ...] = ()  # ... and what it may touch of it: addresses and bytes
    prepared: Any = field(default=None, repr=False)  # what the device made of it


class DeviceError(AssayError):
    """The device refused or is lost: the work at hand ends, and says so."""


class Played(Protocol):
    """Queued work that can be queued again."""

    def __call__(self) -> None: ...
    def close(self) -> None: ...


class Device(Protocol):
    name: str
    multiprocessors: int
    shared_bytes: int  # most of a block
    together: bool  # whether a kernel can have all of the device to itself, and fetch by a copy engine (walk.cu)

    def use(self) -> None:
        """The calling thread is the one that computes."""
        ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        ...

    def alloc(self, size: int, what: str) -> int: ...
    def free(self, at: int) -> None: ...
    def pinned(self, size: int) -> NDArray[np.uint8]:
        """Bytes of host memory that copies need not stage, until the device is closed."""
        ...

    def zero(self, at: int, size: int) -> None: ...
    def upload(self, at: int, data: NDArray[Any]) -> None: ...
    def load(self, at: int, data: NDArray[Any]) -> None:
        """The same for what is large, until `loaded`."""
        ...

    def loaded(self) -> None: ...
    def download(self, data: NDArray[Any], at: int) -> None: ...
    def copy(self, to: int, source: int, size: int) -> None: ...
    def resident(self, kernel: str, threads: int, shared: int) -> int:
        """Blocks of threads that a multiprocessor runs at once."""
        ...

    def launch(self, launch: Launch, early: bool) -> None:
        """Queue a kernel; `early`: it may begin before the one before it has ended."""
        ...

    def capture(self, record: Callable[[], None]) -> Played:
        """What `record` queues, as one graph to be queued again and again."""
        ...

    def mark(self, i: int) -> None:
        """A place behind what is queued now, by number."""
        ...

    def reach(self, i: int) -> None:
        """Wait until everything before the place is done."""
        ...

    def sync(self) -> None: ...
    def close(self) -> None: ...


class Driver:
    """A GPU through the CUDA driver."""

    def __init__(self, cubins: Callable[[str], dict[str, bytes]], index: int = 0) -> None:
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
        code = cubins(f"sm_{major}{minor}")
        self.modules = {name: self._checked(driver.cuModuleLoadData(text)) for name, text in code.items()}
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
        """The context belongs to a thread: whoever computes takes it."""
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
        """Through pinned memory, which several threads fill: one reads slower than the device."""
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
            module = self.modules[next(name for name, kernels in MODULES.items() if kernel in kernels)]
            f = self._checked(self.cu.cuModuleGetFunction(module, kernel.encode()))
            most = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._checked(self.cu.cuFuncSetAttribute(f, most, self.shared_bytes - 1024))
            carveout = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            self._checked(self.cu.cuFuncSetAttribute(f, carveout, 100))
            self.functions[kernel] = f
        return self.functions[kernel]

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
        finally:
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
    """A CUDA graph that is ready to run."""

    driver: Driver
    ready: Any

    def __call__(self) -> None:
        self.driver._checked(self.driver.cu.cuGraphLaunch(self.ready, self.driver.stream))

    def close(self) -> None:
        self.driver.cu.cuGraphExecDestroy(self.ready)
