"""Who computes: the engines by name. Each is imported only when it is wanted."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from assay.engines.base import PagedEngine
from assay.errors import AssayError
from assay.models import Model


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


# A new backend is one module and one row here: its maker, and the modules without which it is not there.
_KNOWN: dict[str, tuple[Callable[..., PagedEngine], tuple[str, ...]]] = {
    "reference": (_reference, ()),
    "cpu": (_cpu, ("assay.engines.cpu", "assay._native")),
}
ENGINES: dict[str, Callable[..., PagedEngine]] = {
    name: make for name, (make, needs) in _KNOWN.items() if all(find_spec(module) for module in needs)
}


def default_name() -> str:
    """The engine that is used when none is named: the fastest there is."""
    return "cpu" if "cpu" in ENGINES else "reference"


def create(name: str, model: Model, **options: Any) -> PagedEngine:
    """An engine bound to a model. Options that are None are left to the engine; one it does not have is an error."""
    if name not in ENGINES:
        raise AssayError(f"engine {name}: not available here; there are {', '.join(ENGINES)}")
    given = {key: value for key, value in options.items() if value is not None}
    try:
        return ENGINES[name](model, **given)
    except TypeError as error:
        unknown = [key for key in given if f"argument '{key}'" in str(error)]
        if not unknown:
            raise
        option = unknown[0].replace("_", "-")
        raise AssayError(f"engine {name}: has no option --{option}; leave it out") from None
