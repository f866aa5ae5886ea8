"""Engines for verification by name: assay's own and the witnesses. Each is imported only when it is opened."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from assay import engines
from assay.engines.contract import Engine
from assay.errors import AssayError
from assay.models import Model
from assay.system import plugins
from assay.verify.witness import WITNESSES
from assay.verify.witness.follower import Talker


def known() -> tuple[str, ...]:
    """Every name that `open_engine` takes; the package of a witness may still be missing."""
    return (*engines.ENGINES, *(name for name, witness in WITNESSES.items() if not witness.talks))


def talkers() -> tuple[str, ...]:
    """Every name that `open_talker` takes."""
    return tuple(name for name, witness in WITNESSES.items() if witness.talks)


def open_engine(name: str, model: Model, **options: Any) -> Engine:
    """An engine or a witness; options that are None keep their defaults."""
    if name in talkers():
        raise AssayError(
            f"engine {name}: gives {WITNESSES[name].shows} and no values; `assay check --engine {name}` asks it"
        )
    if name not in WITNESSES:
        if name not in (*engines.ENGINES, *plugins.names("assay.engines")):
            raise AssayError(f"engine {name}: not available here; there are {', '.join((*known(), *talkers()))}")
        return engines.create(name, model, **options)
    engine: Engine = _adapter(name, model, options)
    return engine


def open_talker(name: str, model: Model, **options: Any) -> Talker:
    """A witness that gives only text with log-probabilities."""
    talker: Talker = _adapter(name, model, options)
    return talker


def _adapter(name: str, model: Model, options: dict[str, Any]) -> Any:
    module, _, kind = WITNESSES[name].adapter.partition(":")
    given = {key: value for key, value in options.items() if value is not None}
    try:
        return getattr(import_module(f"assay.verify.witness.{module}"), kind)(model, **given)
    except TypeError as error:
        unknown = next((key for key in given if f"argument '{key}'" in str(error)), "")
        if not unknown:
            raise
        raise AssayError(f"engine {name}: has no option --{unknown.replace('_', '-')}; leave it out") from None
