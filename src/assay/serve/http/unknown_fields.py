"""Fields of a request that its schema does not have. They are ignored, as OpenAI ignores them, but not silently.

A header of the response names them. Where one resembles a field that exists, the server's log asks once whether that
was meant.
"""

from __future__ import annotations

import difflib
import logging
import re
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from starlette.types import Message, Send

log = logging.getLogger("assay.serve")

HEADER = "x-assay-ignored"
_MOST = 8  # names in a header
_LOGGED = 64  # names that are asked about in the life of a server: a client may send any
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")  # a longer or stranger one is no misspelling
_asked: set[str] = set()


def unknown_fields(value: Any, model: type[BaseModel]) -> tuple[str, ...]:
    """Names of the fields that `model` does not have, `options.temprature` in a part; at most `_MOST`."""
    if not isinstance(value, dict):
        return ()
    known = _fields(model)
    found = [name for name in value if name not in known and _NAME.fullmatch(name)][:_MOST]
    for name, part in known.items():
        if part is not None and isinstance(value.get(name), dict):
            found += [f"{name}.{inner}" for inner in unknown_fields(value[name], part)]
    for name in found:
        _ask(name, value, model)
    return tuple(found[:_MOST])


def naming(send: Send, names: tuple[str, ...]) -> Send:
    """`send` with a header that has these names."""
    if not names:
        return send
    header = (HEADER.encode(), ", ".join(names).encode())

    async def with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return with_header


@cache
def _fields(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The fields of a model as clients write them; of one that is a part with fields of its own, its model."""
    return {field.alias or name: _part(field.annotation) for name, field in model.model_fields.items()}


def _part(annotation: Any) -> type[BaseModel] | None:
    parts = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next((kind for kind in parts if issubclass(kind, BaseModel) and kind.model_fields), None)


def _ask(name: str, value: dict[str, Any], model: type[BaseModel]) -> None:
    """Log once what a field was probably meant to be: one that exists and that the request does not have."""
    if name in _asked or len(_asked) >= _LOGGED or "." in name:
        return
    _asked.add(name)
    near = difflib.get_close_matches(name, [known for known in _fields(model) if known not in value], 1, 0.75)
    if near:
        log.warning("a request has the field %s, which is ignored; was %s meant?", name, near[0])
