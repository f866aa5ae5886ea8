"""A replica or a stage as a process: `python -m assay.cluster.service_process`, started by `launchers.LocalLauncher`.

The first line on standard input is the specification. It includes the token, because all users can read a command line.
The process prints its address on standard output. It exits when standard input ends, so it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from assay.cluster import service
from assay.cluster.launchers import LocalLauncher
from assay.errors import AssayError


def main() -> int:
    spec: dict[str, Any] = json.loads(sys.stdin.readline())
    if spec.get("cpus"):
        os.sched_setaffinity(0, spec["cpus"])
    try:
        made = service.make(spec, LocalLauncher())
    except AssayError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 2

    def watch() -> None:
        sys.stdin.read()
        os._exit(0)  # do not wait for the engine's current step: its result is not needed

    threading.Thread(target=watch, daemon=True).start()

    def ready(host: str, port: int) -> None:
        print(json.dumps({"host": spec.get("address") or host, "port": port, "pid": os.getpid()}), flush=True)

    asyncio.run(service.run(made, spec["token"], spec["host"], ready))
    return 0


if __name__ == "__main__":
    sys.exit(main())
