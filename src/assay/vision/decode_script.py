"""Decodes a stranger's picture in a separate process (`assay.system.box`); never imported.

A request is `{"picture": base64}`. The answer is `{"pixels": base64, "width": n, "height": n}`, or
`{"fault": "picture", "message": str}`.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
from typing import Any

from assay.errors import AssayError
from assay.vision.picture import decode_picture

_DOT = b"P6 1 1 255 abc"


def warm() -> None:
    with contextlib.suppress(ImportError):  # decoding says so
        importlib.import_module("PIL.Image").init()  # its formats are modules, which cannot be read later
    answer({"picture": base64.b64encode(_DOT).decode()})


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        found = decode_picture(base64.b64decode(request["picture"]))
    except AssayError as error:
        return {"fault": "picture", "message": str(error)}
    height, width = found.shape[:2]
    return {"pixels": base64.b64encode(found.tobytes()).decode(), "width": width, "height": height}
