"""A replica or a stage as a process of its own: `python -m assay.cluster.process`, told what to be on standard input.

The first line is the specification, with the token in it (a command line is seen by all users). It answers with its
address on standard output, and ends when standard input does: no process outlives whoever started it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from assay.cluster import service
from assay.errors import AssayError


def main() -> int:
    spec: dict[str, Any] = json.loads(sys.stdin.readline())
    if spec.get("cpus"):
        os.sched_setaffinity(0, spec["cpus"])
    try:
        made = service.make(spec)
    except AssayError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 2

    def watch() -> None:
        sys.stdin.read()
        os._exit(0)  # at once: the engine may be in the middle of a step, and nobody wants it

    threading.Thread(target=watch, daemon=True).start()

    def ready(host: str, port: int) -> None:
        print(json.dumps({"host": spec.get("address") or host, "port": port, "pid": os.getpid()}), flush=True)

    asyncio.run(service.run(made, spec["token"], spec["host"], ready))
    return 0


if __name__ == "__main__":
    sys.exit(main())
