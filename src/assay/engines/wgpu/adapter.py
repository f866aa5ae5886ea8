"""The GPU through wgpu: one device a process, its pipelines and buffers, and its errors in one line.

Engines share the device and its compiled pipelines. A lost device is opened again by the next engine call. Touch this
module when something of wgpu's interface changes; no other module calls wgpu.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.wgpu.shaders import Kernel
from assay.errors import AssayError
from assay.system.extras import install

_KINDS = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "CPU")  # in order of choice
_WANTED = ("max-storage-buffer-binding-size", "max-buffer-size", "max-storage-buffers-per-shader-stage")
_CLOCKS = "timestamp-query"  # a feature for benchmarks
UNPACKED = "return unpack2x16float(word);"  # in tier0.wgsl
BY_INTEGERS = "return bitcast<vec2<f32>>(vec2<u32>(from_half(word & 0xffffu), from_half(word >> 16u)));"
ALIGNMENT = 256  # of a part of a buffer that is bound on its own


class GpuError(AssayError):
    """The device refused a command or was lost."""


Command = tuple[Any, Any, tuple[int, int, int]]  # pipeline, bind group, workgroups
Prepared = NDArray[np.uint64] | list[Command]  # a row for each command: two C handles, three counts


@dataclass(frozen=True)
class Copy:
    """Bytes to copy from one buffer to another."""

    source: Any
    byte: int
    to: Any
    to_byte: int
    count: int


class Gpu:
    """A device with its pipelines."""

    def __init__(self) -> None:
        self._wgpu = _wgpu()
        self._lock = threading.Lock()
        with named_errors("no adapter can be opened"):
            self._adapter = _best_adapter(self._wgpu)
            limits = {name: self._adapter.limits[name] for name in _WANTED}
            clocks = sorted({_CLOCKS} & set(self._adapter.features))
            self._device: Any = self._adapter.request_device_sync(required_limits=limits, required_features=clocks)
        info = self._adapter.info
        self.name = _name(self._adapter)
        self.identity = " ".join(str(info[key]) for key in ("vendor", "device", "description", "backend_type"))
        self.software = info["adapter_type"] == "CPU"
        self.max_binding = int(limits["max-storage-buffer-binding-size"])
        self.max_bindings = int(limits["max-storage-buffers-per-shader-stage"])
        self.max_buffer = int(limits["max-buffer-size"])
        self._calls = _c_calls()
        self._pipelines: dict[tuple[Kernel, int], Any] = {}
        self._unpacks = True  # whether the adapter takes `unpack2x16float`; the first kernel that has it tells
        self._layouts: dict[tuple[bool, ...], Any] = {}

    def buffer(self, size: int, what: str) -> Any:
        """A zeroed buffer of at least `size` bytes."""
        size = max(16, -(-size // 16) * 16)
        if size > min(self.max_binding, self.max_buffer):
            raise AssayError(
                f"engine wgpu: {what} does not fit a buffer of {self.name} (found {size} bytes, expected at most "
                f"{min(self.max_binding, self.max_buffer)}); use a smaller --ctx-size or --engine cpu"
            )
        usage = self._wgpu.BufferUsage
        with named_errors(f"no memory for {what} ({size >> 20} MB)"):
            return self._device.create_buffer(size=size, usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST)

    def loaded(self, data: NDArray[Any], what: str) -> Any:
        """A buffer with this data."""
        buffer = self.buffer(data.nbytes, what)
        self.write(buffer, data)
        return buffer

    def write(self, buffer: Any, data: NDArray[Any], at: int = 0) -> None:
        """Copy an array into a buffer, after everything submitted before."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.size % 4:
            raw = np.pad(raw, (0, -raw.size % 4))
        with named_errors("writing a buffer"):
            self._device.queue.write_buffer(buffer, at, raw)

    def read(self, buffer: Any, words: int, at: int = 0) -> NDArray[np.uint32]:
        """The first words of a buffer from byte `at` on, after everything submitted before."""
        with named_errors("reading a buffer"):
            return np.frombuffer(self._device.queue.read_buffer(buffer, at, 4 * words), np.uint32)

    def copy(self, parts: Sequence[tuple[Any, int, int, int]]) -> None:
        """Copy within buffers: (buffer, byte to read from, byte to write to, bytes). The ranges do not overlap."""
        with named_errors("copying a buffer"):
            usage = self._wgpu.BufferUsage
            size = max(part[3] for part in parts)
            spare = self._device.create_buffer(size=size, usage=usage.COPY_SRC | usage.COPY_DST)
            encoder = self._device.create_command_encoder()
            for buffer, at, to, count in parts:  # WebGPU refuses a copy from a buffer to itself
                encoder.copy_buffer_to_buffer(buffer, at, spare, 0, count)
                encoder.copy_buffer_to_buffer(spare, 0, buffer, to, count)
            self._device.queue.submit([encoder.finish()])

    def clear(self, parts: Sequence[tuple[Any, int, int]]) -> None:
        """Zero (buffer, first byte, bytes)."""
        with named_errors("clearing a buffer"):
            encoder = self._device.create_command_encoder()
            for buffer, at, size in parts:
                encoder.clear_buffer(buffer, at, size)
            self._device.queue.submit([encoder.finish()])

    def compile(self, kernels: Iterable[Kernel], tier: int) -> None:
        """Compile kernels that are not compiled yet, several at a time: a driver takes up to a second for each."""
        missing = [kernel for kernel in dict.fromkeys(kernels) if (kernel, tier) not in self._pipelines]
        if len(missing) > 1:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                list(pool.map(lambda kernel: self.pipeline(kernel, tier), missing))

    def pipeline(self, kernel: Kernel, tier: int) -> Any:
        """The compiled kernel."""
        found = self._pipelines.get((kernel, tier))
        if found is None:
            with named_errors(f"kernel {kernel.name} cannot be compiled"):
                module = self._module(kernel.source(tier))
                layout = self._device.create_pipeline_layout(bind_group_layouts=[self._layout(kernel)])
                found = self._device.create_compute_pipeline(
                    layout=layout, compute={"module": module, "entry_point": "main"}
                )
            found = self._pipelines.setdefault((kernel, tier), found)
        return found

    def _module(self, code: str) -> Any:
        """The module of a kernel. Some adapters refuse `unpack2x16float`: they get halves by integers."""
        if not self._unpacks:
            code = code.replace(UNPACKED, BY_INTEGERS)
        try:
            return _trusted_module(self._device, code)
        except Exception:
            if not self._unpacks or UNPACKED not in code:
                raise
            self._unpacks = False
            return self._module(code)

    def _layout(self, kernel: Kernel) -> Any:
        written = (False, *kernel.bindings.values())
        if len(written) > self.max_bindings:
            raise AssayError(
                f"engine wgpu: kernel {kernel.name} binds more buffers than {self.name} can (found {len(written)}, "
                f"expected at most {self.max_bindings}); use --engine cpu"
            )
        with self._lock:
            if written not in self._layouts:
                entries = [
                    {
                        "binding": i,
                        "visibility": self._wgpu.ShaderStage.COMPUTE,
                        "buffer": {"type": "storage" if writes else "read-only-storage"},
                    }
                    for i, writes in enumerate(written)
                ]
                self._layouts[written] = self._device.create_bind_group_layout(entries=entries)
            return self._layouts[written]

    def bind_group(self, kernel: Kernel, par: tuple[Any, int, int], buffers: Mapping[str, Any]) -> Any:
        """The buffers of one dispatch; `par` is a buffer, a byte in it, and a size."""
        buffer, at, size = par
        entries = [{"binding": 0, "resource": {"buffer": buffer, "offset": at, "size": size}}]
        for i, name in enumerate(kernel.bindings):
            bound = buffers[name]
            entries.append({"binding": i + 1, "resource": {"buffer": bound, "offset": 0, "size": bound.size}})
        with named_errors(f"binding buffers of kernel {kernel.name}"):
            return self._device.create_bind_group(layout=self._layout(kernel), entries=entries)

    def landing(self, size: int) -> Any:
        """A buffer that the device copies results to and the host reads."""
        usage = self._wgpu.BufferUsage
        with named_errors("no memory for results"):
            return self._device.create_buffer(size=size, usage=usage.COPY_DST | usage.MAP_READ)

    def landed(self, landing: Any, words: int) -> NDArray[np.uint32]:
        """The words of such a buffer, after the commands that fill it; it cannot be used again."""
        with named_errors("reading results"):
            landing.map_async("READ_NOSYNC").sync_wait()
            found = np.frombuffer(landing.read_mapped(), np.uint32, words)
            landing.destroy()
            return found

    def prepared(self, commands: Sequence[Command]) -> Prepared:
        """Commands as `submit` takes them: handles of C where they are known, no pipeline where it stays the same."""
        pipelines = [p if i == 0 or p is not commands[i - 1][0] else None for i, (p, _, _) in enumerate(commands)]
        if not self._calls:
            return [(new, group, counts) for new, (_, group, counts) in zip(pipelines, commands, strict=True)]
        rows = [
            (self._calls.address(new) if new else 0, self._calls.address(group), *counts)
            for new, (_, group, counts) in zip(pipelines, commands, strict=True)
        ]
        return np.array(rows, np.uint64).reshape(-1, 5)

    def submit(self, commands: Prepared, before: Sequence[Copy] = (), after: Sequence[Copy] = ()) -> None:
        """One pass of prepared commands, in order, with copies before and after it."""
        with named_errors("running a step"):
            encoder = self._device.create_command_encoder()
            for c in before:
                encoder.copy_buffer_to_buffer(c.source, c.byte, c.to, c.to_byte, c.count)
            run = encoder.begin_compute_pass()
            if self._calls and isinstance(commands, np.ndarray):
                _native.encode_dispatches(self._calls.address(run), self._calls.functions, commands)
            else:
                for pipeline, group, counts in commands:
                    if pipeline is not None:
                        run.set_pipeline(pipeline)
                    run.set_bind_group(0, group)
                    run.dispatch_workgroups(*counts)
            run.end()
            for c in after:
                encoder.copy_buffer_to_buffer(c.source, c.byte, c.to, c.to_byte, c.count)
            self._device.queue.submit([encoder.finish()])

    def timed(self, commands: Sequence[Command], together: bool = False) -> NDArray[np.uint64]:
        """Run the commands, each in a pass of its own or all in one, and give the nanoseconds of each pass."""
        passes = [list(commands)] if together else [[command] for command in commands]
        usage = self._wgpu.BufferUsage
        with named_errors("timing a step"):
            clock = self._device.create_query_set(type="timestamp", count=2 * len(passes))
            found = self._device.create_buffer(size=16 * len(passes), usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
            encoder = self._device.create_command_encoder()
            for i, inside in enumerate(passes):
                run = encoder.begin_compute_pass(
                    timestamp_writes={
                        "query_set": clock,
                        "beginning_of_pass_write_index": 2 * i,
                        "end_of_pass_write_index": 2 * i + 1,
                    }
                )
                for pipeline, group, counts in inside:
                    run.set_pipeline(pipeline)
                    run.set_bind_group(0, group)
                    run.dispatch_workgroups(*counts)
                run.end()
            encoder.resolve_query_set(clock, 0, 2 * len(passes), found, 0)
            self._device.queue.submit([encoder.finish()])
        ends = self.read(found, 4 * len(passes)).view(np.uint64).reshape(-1, 2)
        return ends[:, 1] - ends[:, 0]


_opened: list[Gpu] = []
_opening = threading.Lock()


def gpu() -> Gpu:
    """The device of this process."""
    with _opening:
        if not _opened:
            _opened.append(Gpu())
        return _opened[0]


def forget(lost: Gpu) -> None:
    """Open another device next time."""
    with _opening:
        if lost in _opened:
            _opened.remove(lost)


@contextmanager
def named_errors(doing: str) -> Iterator[None]:
    """wgpu's errors as ours, in one line."""
    try:
        yield
    except AssayError:
        raise
    except Exception as error:
        first = " ".join(str(error).split())[:300]
        raise GpuError(f"engine wgpu: {doing} ({type(error).__name__}: {first}); use --engine cpu") from error


def _wgpu() -> Any:
    """The module wgpu, told to leave OpenGL alone, which has fewer limits, and to keep its warnings to itself."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # else Mesa prints errors to the terminal
    try:
        module = import_module("wgpu")
        logging.getLogger("wgpu").setLevel(logging.ERROR)
        extras = import_module("wgpu.backends.wgpu_native.extras")
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    except ImportError:
        raise AssayError(f"engine wgpu: wgpu is not installed; {install('wgpu')}") from None
    except (AttributeError, RuntimeError):
        pass  # another version of wgpu, or the instance exists already
    return module


@dataclass(frozen=True)
class CCalls:
    """Addresses of the C functions that encode a dispatch. Calling them from C takes a third of the time."""

    ffi: Any
    functions: tuple[int, int, int]  # set pipeline, set bind group, dispatch

    def address(self, thing: Any) -> int:
        """The C handle of a pipeline, a bind group or a pass."""
        return int(self.ffi.cast("uintptr_t", thing._internal))


def _c_calls() -> CCalls | None:
    """None if this version of wgpu does not show them."""
    try:
        api = import_module("wgpu.backends.wgpu_native._api")
        names = ("SetPipeline", "SetBindGroup", "DispatchWorkgroups")
        found = [api.ffi.addressof(api.lib, f"wgpuComputePassEncoder{name}") for name in names]
        one, two, three = (int(api.ffi.cast("uintptr_t", address)) for address in found)
        return CCalls(api.ffi, (one, two, three))
    except (ImportError, AttributeError):
        return None


def _trusted_module(device: Any, code: str) -> Any:
    """A module without a counter in every loop and without a test at every index, which keep drivers from unrolling.

    The kernels are this package's own: their loops end, and their indices are checked before a step.
    """
    try:
        api = import_module("wgpu.backends.wgpu_native._api")
        create = api.libf.wgpuDeviceCreateShaderModuleTrusted
        text = api.to_c_string_view(code)
        source = api.new_struct_p("WGPUShaderSourceWGSL *", code=text)
        source[0].chain.next, source[0].chain.sType = api.ffi.NULL, api.lib.WGPUSType_ShaderSourceWGSL
        chained = api.ffi.cast("WGPUChainedStruct *", source)
        label = api.to_c_string_view("")
        described = api.new_struct_p("WGPUShaderModuleDescriptor *", nextInChain=chained, label=label)
    except (ImportError, AttributeError, TypeError, KeyError):  # another version of wgpu
        return device.create_shader_module(code=code)
    return api.GPUShaderModule("", create(device._internal, described, 0), device)


def adapters() -> list[str]:
    """The names of all GPU adapters, the one in use first; raises AssayError if no adapter can be used."""
    module = _wgpu()
    with named_errors("no adapter can be listed"):
        best = _best_adapter(module)
        others = [a for a in _every_adapter(module) if dict(a.info) != dict(best.info)]
        return [_name(a) for a in (best, *others)]


def _name(adapter: Any) -> str:
    return f"{adapter.info['device']} ({adapter.info['backend_type']})"


def _every_adapter(module: Any) -> list[Any]:
    return [a for a in module.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]


def _best_adapter(module: Any) -> Any:
    """The fastest kind of adapter; ASSAY_ADAPTER names another by a part of its name."""
    named = os.environ.get("ASSAY_ADAPTER", "")
    every = _every_adapter(module)
    found = [a for a in every if named.lower() in str(dict(a.info)).lower()]
    if not found:
        there = ", ".join(a.info["device"] for a in every) or "none"
        if named and every:
            raise AssayError(
                f"ASSAY_ADAPTER: no GPU adapter has {named} in its name (found {there}); name one of these or unset it"
            )
        raise AssayError(
            f"engine wgpu: no GPU adapter (found {there}); install a Vulkan driver, for instance mesa-vulkan-drivers, "
            "or use --engine cpu"
        )
    return min(found, key=lambda a: _KINDS.index(a.info["adapter_type"]) if a.info["adapter_type"] in _KINDS else 9)
