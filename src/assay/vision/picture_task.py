"""Decodes pictures in a separate process (`assay.system.box`); never imported.

A request is `{"picture": base64}`. The answer is `{"size": [height, width], "pixels": base64}`, RGB, or a fault.
"""

from __future__ import annotations

import base64
import os
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded: its threads would take address space

from assay.errors import AssayError
from assay.vision.picture import FORMATS, decode_picture, sample_picture


def warm() -> None:
    for kind in FORMATS:  # Pillow loads a format's module when it is first used
        decode_picture(sample_picture(kind))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        found = decode_picture(base64.b64decode(request["picture"]))
    except AssayError as error:
        return {"fault": "refused", "message": str(error)}
    return {"size": list(found.shape[:2]), "pixels": base64.b64encode(found.tobytes()).decode()}
