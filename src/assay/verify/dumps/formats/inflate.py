"""What undoes deflate, inside the box (`assay.system.box`); never imported.

A request is `{"deflated": base64, "most": bytes}`, an answer `{"raw": base64}`: at most so many bytes, the beginning
where there are more.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any


def warm() -> None:
    answer({"deflated": base64.b64encode(zlib.compress(b"a")[2:-4]).decode(), "most": 1})


def answer(request: dict[str, Any]) -> dict[str, str]:
    try:
        raw = zlib.decompressobj(-zlib.MAX_WBITS).decompress(base64.b64decode(request["deflated"]), request["most"])
    except zlib.error as error:
        return {"fault": "damaged", "message": str(error)}
    return {"raw": base64.b64encode(raw).decode()}
