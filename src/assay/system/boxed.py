"""The main program of a sandboxed process; started by `assay.system.box`, never imported.

    python -I -S boxed.py  '{"script": path, "paths": […], "memory": bytes, "cpu_s": s, "threads": bool}'

It loads the script, calls its `warm()`, drops all privileges it does not need (`confine.py`), writes the line `ready`,
and then serves: one request per line on stdin, one answer per line on stdout. `answer(request) -> reply` of the script
takes and returns JSON data. It must not raise, except MemoryError.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Serve until stdin closes."""
    given = json.loads(sys.argv[1])
    sys.path[:] = given["paths"]
    confine = load(Path(__file__).with_name("confine.py"))
    task = load(Path(given["script"]))
    task.warm()  # late imports must happen before files are blocked
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    confine.confine(given["memory"], threads=given["threads"])
    sink.write(b"ready\n")
    sink.flush()
    for line in source:
        confine.allow_cpu(given["cpu_s"])
        try:
            reply = json.dumps(task.answer(json.loads(line)))
        except MemoryError:
            reply = json.dumps({"fault": "memory", "message": f"more than {given['memory'] >> 20} MiB"})
        sink.write(reply.encode() + b"\n")
        sink.flush()


if __name__ == "__main__":
    main()
