"""Who computes: the engines by name. Each is imported only when it is wanted."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from assay.engines.contract import PagedEngine
from assay.errors import AssayError
from assay.models import Model
from assay.system import plugins
from assay.system.extras import install


def _reference(model: Model, *, precision: str = "f64", **options: Any) -> PagedEngine:
    from assay.engines.reference import ReferenceEngine

    precisions = {"f64": "float64", "f32": "float32"}
    if precision not in precisions:
        raise AssayError(f"engine reference: no such precision (found {precision}, expected f64 or f32)")
    options.pop("threads", None)  # it has no threads of its own
    return ReferenceEngine(model, precisions[precision], **options)


def _cpu(model: Model, **options: Any) -> PagedEngine:
    engine: PagedEngine = import_module("assay.engines.cpu").CpuEngine(model, **options)
    return engine


def _cuda(model: Model, **options: Any) -> PagedEngine:
    engine: PagedEngine = import_module("assay.engines.cuda").CudaEngine(model, **options)
    return engine


def _auto(model: Model, *, window_pages: Callable[[int], int] | None = None, **options: Any) -> PagedEngine:
    """The GPU where there is one that runs this model, else the cpu."""
    if "cuda" in ENGINES:
        try:
            return _cuda(model, **options)
        except AssayError:
            pass  # it does not fit, or has an operation that the GPU engine has not
    return _cpu(model, window_pages=window_pages, **options) if "cpu" in ENGINES else _reference(model, **options)


def _no_native() -> str:
    return "" if find_spec("assay._native") else "the native module is not built"


def _no_gpu() -> str:
    """Why no GPU can be used, or nothing."""
    if _no_native() or not find_spec("cuda") or not find_spec("cuda.bindings"):
        return _no_native() or f"cuda-bindings is not installed; {install('cuda')}"
    try:
        CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver on this machine (libcuda.so.1); use --engine cpu"
    return ""


# A new backend is one module and one row here: its maker, and what is missing, if it is not there.
_KNOWN: dict[str, tuple[Callable[..., PagedEngine], Callable[[], str]]] = {
    "reference": (_reference, str),
    "cpu": (_cpu, _no_native),
    "cuda": (_cuda, _no_gpu),
    "auto": (_auto, str),
}
ENGINES: dict[str, Callable[..., PagedEngine]] = {
    name: make for name, (make, missing) in _KNOWN.items() if not missing()
}


WINDOWED = ("cpu", "auto")  # those that keep pages for layers with a window apart (auto: where it is the cpu)


def default_name() -> str:
    """The engine that is used when none is named: the fastest there is."""
    return "auto" if "cuda" in ENGINES else "cpu" if "cpu" in ENGINES else "reference"


def maker(name: str) -> Callable[..., PagedEngine] | None:
    """The function that makes an engine: a built-in one, else one of an installed package (`system/plugins.py`)."""
    if name in ENGINES:
        return ENGINES[name]
    found: Callable[..., PagedEngine] | None = None if name in _KNOWN else plugins.find("assay.engines", name)
    return found


def create(name: str, model: Model, **options: Any) -> PagedEngine:
    """An engine bound to a model. Options that are None are left to the engine; one it does not have is an error."""
    make = maker(name)
    if make is None:
        others = ", ".join((*ENGINES, *plugins.names("assay.engines")))
        missing = _KNOWN[name][1]() if name in _KNOWN else f"not available here; there are {others}"
        raise AssayError(f"engine {name}: {missing}")
    given = {key: value for key, value in options.items() if value is not None}
    try:
        return make(model, **given)
    except TypeError as error:
        unknown = [key for key in given if f"argument '{key}'" in str(error)]
        if not unknown:
            raise
        option = unknown[0].replace("_", "-")
        raise AssayError(f"engine {name}: has no option --{option}; leave it out") from None
