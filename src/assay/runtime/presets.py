"""Presets: a model under another name, with settings of its own. A TOML file has one table for each.

    [coder]
    model = "qwen3:8b"              # as for `assay run`: a path, a name, hf:…, ollama:…
    system = "You write Python."    # for conversations that begin without a system message
    temperature = 0.2               # sampler settings under the names of the HTTP routes
    stop = ["\\n\\n"]               # stop strings of requests that have none
    max_tokens = 2048               # limit of requests that have none
    draft = "qwen3:0.6b"
    lora = ["style.gguf=0.8"]
    ctx_size = 16384

`assay serve --presets FILE` offers them. Those that clients make (`/api/create`, `/api/copy`) are kept in assay's
folder and offered again after a restart.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.runtime.params import SamplerParams
from assay.system import files
from assay.system.home import home
from assay.system.text_files import decode_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,199}")
_LARGEST = 1 << 20  # bytes of a file of presets
_OTHER_NAMES = {"temperature": "temp", "typical_p": "typical"}  # of the HTTP routes -> of SamplerParams
_SAMPLER = {item.name for item in fields(SamplerParams)} - {"seed", "logit_bias", "dry_breakers"}
_TEXTS = ("model", "system", "draft")
_COUNTS = {"ctx_size": 0, "max_tokens": 1}  # whole numbers, and the least of each
_LISTS = {"lora": 64, "stop": 16}  # lists of texts, and how many each may have
_STOP_LENGTH = 256  # characters of a stop string


@dataclass(frozen=True)
class Preset:
    """A model under another name."""

    name: str
    model: str
    system: str = ""
    draft: str | None = None
    lora: tuple[str, ...] = ()  # FILE or FILE=SCALE
    ctx_size: int | None = None
    sampler: Mapping[str, float] = field(default_factory=dict)  # under the names of SamplerParams
    stop: tuple[str, ...] = ()  # of requests without stop strings
    max_tokens: int | None = None  # of requests without a limit

    @property
    def shares(self) -> bool:
        """Whether it can use the engine of its model: it changes neither weights nor cache."""
        return self.draft is None and not self.lora and self.ctx_size is None


def parse(name: str, table: Any, where: str) -> Preset:
    """A preset from a table of TOML or JSON."""
    if not _NAME.fullmatch(name):
        raise AssayError(f"{where}: not a name for a preset (found {name!r:.60}); use letters, digits and _ . : / -")
    if not isinstance(table, dict) or not isinstance(table.get("model"), str):
        raise AssayError(f'{where}: preset {name} names no model; add model = "…"')
    given: dict[str, Any] = {"name": name}
    sampler: dict[str, float] = {}
    for key, value in table.items():
        known = _OTHER_NAMES.get(key, key)
        counted = key in _COUNTS and type(value) is int and _COUNTS[key] <= value < 2**31
        if counted or (key in _TEXTS and isinstance(value, str)):
            given[key] = value
        elif key in _LISTS and _is_list(key, [value] if key == "stop" and isinstance(value, str) else value):
            given[key] = (value,) if isinstance(value, str) else tuple(value)
        elif known in _SAMPLER and isinstance(value, int | float) and not isinstance(value, bool):
            sampler[known] = value
        else:
            settings = ", ".join(sorted({*_TEXTS, *_LISTS, *_COUNTS, "temperature", *_SAMPLER} - {"temp"}))
            raise AssayError(f"{where}: preset {name}: {key} = {value!r:.40} is not a setting; there are {settings}")
    SamplerParams(**sampler)  # type: ignore[arg-type]  # refuses values out of range
    return Preset(**given, sampler=sampler)


def _is_list(key: str, value: Any) -> bool:
    """Whether a setting is a list of texts. A stop string has 1 to 256 characters, as in a request."""
    if not isinstance(value, list) or len(value) > _LISTS[key] or not all(isinstance(item, str) for item in value):
        return False
    return key != "stop" or all(1 <= len(item) <= _STOP_LENGTH for item in value)


def read(path: Path) -> list[Preset]:
    """The presets of a TOML file."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise AssayError(f"{path}: too large for presets (at most {_LARGEST} bytes)")
        tables = tomllib.loads(decode_text(data, str(path), "presets; write them in TOML"))
    except OSError as error:
        raise AssayError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise AssayError(f"{path}: is not TOML ({error})") from None
    return [parse(name, table, str(path)) for name, table in tables.items()]


def stored_path() -> Path:
    """The file of presets that clients have made."""
    return home() / "presets.toml"


def stored() -> list[Preset]:
    return read(stored_path()) if stored_path().is_file() else []


def store(presets: Iterable[Preset]) -> None:
    """Replace the presets that clients have made."""
    stored_path().parent.mkdir(parents=True, exist_ok=True)
    files.write(stored_path(), "\n".join(map(_as_toml, presets)))


def _as_toml(preset: Preset) -> str:
    said = {"model": preset.model, "system": preset.system, "draft": preset.draft, "lora": list(preset.lora),
            "ctx_size": preset.ctx_size, "stop": list(preset.stop), "max_tokens": preset.max_tokens,
            **preset.sampler}  # fmt: skip
    lines = [f"{key} = {_toml_value(value)}" for key, value in said.items() if value not in (None, "", [])]
    return "\n".join([f"[{json.dumps(preset.name)}]", *lines, ""])


def _toml_value(value: Any) -> str:
    """A value of TOML: its strings, lists and numbers are written as JSON writes them, except the character DEL."""
    return json.dumps(value).replace("\x7f", "\\u007f")
