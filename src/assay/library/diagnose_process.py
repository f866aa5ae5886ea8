"""Diagnose one dump in a separate process, for the server: `python -m assay.library.diagnose_process MODEL DUMP`.

It prints one JSON object: the diagnosis as text and as data, and the verdict on every node; on failure an object with
`error`. An untrusted dump can only harm this process, which the server can kill.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from assay.errors import AssayError
from assay.system.plain import plain


def diagnose_dump(model: str, dump: str, prompt: str | None) -> dict[str, Any]:
    from assay.library.verdicts import diagnose
    from assay.runtime.opening import open_model

    found = diagnose(open_model(model), values=dump, prompt=prompt)
    diff = getattr(found.result, "diff", None)
    nodes = [
        {"name": n.name, "verdict": n.verdict, "own": n.own, "explained_by": n.explained_by, "nmse": n.evidence.nmse}
        for n in (() if diff is None else diff.nodes)  # not `diff or ()`: a diff is false if a node is wrong
    ]
    return {"verdict": found.verdict, "words": repr(found), "nodes": nodes, "diagnosis": found.to_dict()}


if __name__ == "__main__":
    try:
        answer = diagnose_dump(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    except (AssayError, OSError, MemoryError) as error:
        answer = {"error": " ".join(str(error).split()) or type(error).__name__}
    print(json.dumps(plain(answer), allow_nan=False))
