"""Engines for verification by name: assay's own, and the witnesses, which are other people's engines."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from assay import engines
from assay.engines.base import Engine
from assay.errors import AssayError
from assay.models import Model

# Name, module, class. Each says itself what to install when it is missing.
WITNESSES: dict[str, tuple[str, str]] = {
    "llamacpp": ("assay.verify.witness.llamacpp", "LlamaCppEngine"),
    "transformers": ("assay.verify.witness.transformers", "TransformersEngine"),
}


def known() -> tuple[str, ...]:
    """Every name that `open_engine` takes; a witness may still be missing its package."""
    return (*engines.ENGINES, *WITNESSES)


def open_engine(name: str, model: Model, **options: Any) -> Engine:
    """An engine or a witness; options that are None are left to it."""
    if name not in WITNESSES:
        if name not in engines.ENGINES:
            raise AssayError(f"engine {name}: not available here; there are {', '.join(known())}")
        return engines.create(name, model, **options)
    module, kind = WITNESSES[name]
    engine: Engine = getattr(import_module(module), kind)(model, **{k: v for k, v in options.items() if v is not None})
    return engine
