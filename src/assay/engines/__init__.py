"""Engines: each computes a model's graph for a batch of sequences. This module has the table of them.

`reference` is the definition in float64, `cpu` the native SIMD engine, `cuda` the engine for NVIDIA GPUs, `wgpu` the
engine for every GPU that WebGPU reaches. `contract.py` says what an engine must do; `plan/` has the steps that the
compilers share. A new engine is a module that fulfils the contract and a row in the table below, or the entry point
`assay.engines` of another package. An engine's module is imported only when the engine is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from assay.engines.contract import NoRoom, PagedEngine
from assay.errors import AssayError
from assay.models import Model
from assay.system import plugins
from assay.system.extras import install


@dataclass(frozen=True)
class EngineRow:
    """One engine of the table. `load` imports its class, whose attributes state what it can do before it is created."""

    load: Callable[[], type[PagedEngine]]
    missing: Callable[[], str] = str  # what the engine lacks here; empty if it can run
    extra: str = ""  # the packages that `missing` may name: the reason says how to install them
    create: Callable[..., PagedEngine] | None = None  # None: call the class

    def make(self, model: Model, **options: Any) -> PagedEngine:
        create: Callable[..., PagedEngine] = self.create or self.load()
        return create(model, **options)

    def reason(self) -> str:
        """Why the engine cannot run here, and what to do; empty if it can."""
        lacking = self.missing()
        return f"{lacking}; {install(self.extra)}" if lacking.endswith(_NOT_INSTALLED) else lacking


_NOT_INSTALLED = "is not installed"


def _imported(module: str, name: str) -> Callable[[], type[PagedEngine]]:
    def load() -> type[PagedEngine]:
        found: type[PagedEngine] = getattr(import_module(module), name)
        return found

    return load


def _reference(model: Model, *, precision: str = "f64", **options: Any) -> PagedEngine:
    """The reference engine takes a NumPy type for its precision, and has no threads."""
    from assay.engines.reference import ReferenceEngine

    if precision not in ReferenceEngine.precisions:
        expected = " or ".join(ReferenceEngine.precisions)
        raise AssayError(f"engine reference: no such precision (found {precision}, expected {expected})")
    options.pop("threads", None)
    return ReferenceEngine(model, f"float{precision.removeprefix('f')}", **options)


def _auto(
    model: Model, *, window_pages: Callable[[int], int] | None = None, answering: bool = False, **options: Any
) -> PagedEngine:
    """The cuda engine if a GPU is present and can hold and run this model, else the cpu engine."""
    if "cuda" in ENGINES:
        try:
            return _made("cuda", ENGINES["cuda"], model, answering, options)
        except AssayError:
            pass  # the model does not fit, or has an operation that the cuda engine lacks
    options.pop("cpu_experts", None)  # all of them are on the cpu then
    if "cpu" in ENGINES:
        return ENGINES["cpu"](model, window_pages=window_pages, **options)
    return _reference(model, **options)


def _no_native() -> str:
    return "" if find_spec("assay._native") else "the native module is not built"


def _no_gpu() -> str:
    """Why no GPU can be used; empty if one can."""
    if _no_native() or not find_spec("cuda") or not find_spec("cuda.bindings"):
        return _no_native() or f"cuda-bindings {_NOT_INSTALLED}"
    try:
        CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver on this machine (libcuda.so.1); use --engine cpu"
    return ""


def _no_wgpu() -> str:
    """Why WebGPU cannot be used; empty if it may. Adapters are looked for when an engine is created."""
    if _no_native() or not find_spec("wgpu"):
        return _no_native() or f"wgpu {_NOT_INSTALLED}"
    if sys.platform.startswith("linux"):
        try:
            CDLL("libvulkan.so.1")
        except OSError:
            return "there is no Vulkan on this machine (libvulkan.so.1); install a driver, such as mesa-vulkan-drivers"
    return ""


_load_reference = _imported("assay.engines.reference", "ReferenceEngine")
_load_cpu = _imported("assay.engines.cpu", "CpuEngine")
_TABLE: dict[str, EngineRow] = {
    "reference": EngineRow(_load_reference, create=_reference),
    "cpu": EngineRow(_load_cpu, _no_native),
    "cuda": EngineRow(_imported("assay.engines.cuda", "CudaEngine"), _no_gpu, extra="cuda"),
    "wgpu": EngineRow(_imported("assay.engines.wgpu", "WgpuEngine"), _no_wgpu, extra="wgpu"),
    # Sizes are estimated for the cpu engine: `auto` falls back to it.
    "auto": EngineRow(_load_reference if _no_native() else _load_cpu, create=_auto),
}
# The engines that can run here, by name.
ENGINES: dict[str, Callable[..., PagedEngine]] = {name: row.make for name, row in _TABLE.items() if not row.missing()}


def missing_reasons() -> dict[str, str]:
    """Every built-in engine, and why it cannot run here; empty if it can."""
    return {name: row.reason() for name, row in _TABLE.items() if name != "auto"}


def default_name() -> str:
    """The engine for users who name none: the fastest that can run here."""
    return "auto" if "cuda" in ENGINES else "cpu" if "cpu" in ENGINES else "reference"


def engine_class(name: str) -> type[PagedEngine]:
    """The class of an engine that can run here. Its attributes state its `precisions` and `separate_windows`."""
    return _row(name).load()


def default_kv_type(name: str, precision: str | None) -> str:
    """The type of an engine's cache if the user asks for none."""
    modes = engine_class(name).precisions
    return modes.get(precision or "", next(iter(modes.values()), "f16"))


def create(name: str, model: Model, *, answering: bool = False, **options: Any) -> PagedEngine:
    """An engine bound to a model. For an option of None the engine uses its default; an option it lacks is an error.

    With `answering` the default precision is the one that the engine has for requests (`PagedEngine.answering`). If the
    model does not fit in it, the engine's own default is taken.
    """
    make = ENGINES.get(name) or _row(name).make
    given = {key: value for key, value in options.items() if value is not None}
    try:
        if name == "auto":
            return make(model, answering=answering, **given)
        return _made(name, make, model, answering, given)
    except TypeError as error:
        unknown = [key for key in given if f"argument '{key}'" in str(error)]
        if not unknown:
            raise
        option = unknown[0].replace("_", "-")
        raise AssayError(f"engine {name}: has no option --{option}; leave it out") from None


def _made(
    name: str, make: Callable[..., PagedEngine], model: Model, answering: bool, options: dict[str, Any]
) -> PagedEngine:
    """The engine, in the precision for requests if it is asked for, none is given, and the model fits in it."""
    precision = getattr(engine_class(name), "answering", "") if answering and "precision" not in options else ""
    if precision:
        try:
            return make(model, **{**options, "precision": precision})
        except NoRoom:
            pass
    return make(model, **options)


def _row(name: str) -> EngineRow:
    """The row of an engine that can run here: built in, or of an installed package (`system/plugins.py`)."""
    if name in ENGINES:
        return _TABLE[name]
    if name in _TABLE:
        raise AssayError(f"engine {name}: {_TABLE[name].reason()}")
    found: Callable[..., PagedEngine] | None = plugins.find("assay.engines", name)
    if found is None:
        known = ", ".join((*ENGINES, *plugins.names("assay.engines")))
        raise AssayError(f"engine {name}: not available here; there are {known}")
    stated = found if isinstance(found, type) else PagedEngine  # a function states no capabilities
    return EngineRow(lambda: stated, create=found)
