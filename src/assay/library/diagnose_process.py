"""Diagnose one dump in a separate process, for the server: `python -m assay.library.diagnose_process < JOB`.

The job is one JSON object on stdin, because other users can read a command line: `model` and `dump` are paths, and
`prompt` is a text or null. `memory` is the number of bytes that the process may allocate, `tokens` the limit on tokens.

The process prints lines of JSON. `{"event": "progress", "label", "done", "total"}` may come several times. The last one
is the diagnosis as text and as data, with the verdict on every node and the data of the report; on failure an object
with `error`. An untrusted dump can only harm this process, which the server can kill.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.system.plain import plain
from assay.system.stages import JsonLines, note, shown_by


def diagnose_dump(model: str, dump: str, prompt: str | None, most: int) -> dict[str, Any]:
    note("reading the dump")
    from assay.library.verdicts import diagnose
    from assay.runtime.opening import open_model
    from assay.verify.dumps.load import read_dump

    # The report names its dump. Clients must not see the path of the server's folder.
    values, opened = replace(read_dump(Path(dump)), source=Path(dump).name), open_model(model)
    _check_length("the dump", len(values.tokens or ()), most)
    if prompt is not None:
        _check_length("the prompt", len(opened.tokenizer.encode(prompt)), most)
    found = diagnose(opened, values=values, prompt=prompt)
    diff = getattr(found.result, "diff", None)
    nodes = [
        {
            "name": n.name, "verdict": n.verdict, "own": n.own, "known": n.known.id, "explained_by": n.explained_by,
            "nmse": n.evidence.nmse,
        }
        for n in (() if diff is None else diff.nodes)  # not `diff or ()`: a diff is false if a node is wrong
    ]  # fmt: skip
    return {
        "verdict": found.verdict, "words": repr(found), "nodes": nodes, "diagnosis": found.to_dict(),
        "report": found.report(),
    }  # fmt: skip


def _check_length(what: str, found: int, most: int) -> None:
    if found > most:
        raise AssayError(
            f"{what} has too many tokens for the server (found {found}, at most {most}); dump a shorter run, or use "
            "`assay diagnose`"
        )


def limit_memory(size: int) -> None:
    """Limit what this process allocates. The mapped model file does not count."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    except (ImportError, ValueError, OSError):
        return


def main() -> None:
    job = json.load(sys.stdin)
    limit_memory(job["memory"])
    try:
        with shown_by(JsonLines(sys.stdout)):
            answer = diagnose_dump(job["model"], job["dump"], job["prompt"], job["tokens"])
    except MemoryError:
        size = job["memory"] >> 20
        answer = {
            "error": f"the diagnosis needs more than {size} MiB; dump fewer tokens or nodes, or use `assay diagnose`"
        }
    except (AssayError, OSError) as error:
        answer = {"error": " ".join(str(error).split()) or type(error).__name__}
    print(json.dumps(plain(answer), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
