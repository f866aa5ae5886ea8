"""A job in a separate process, so that what takes a core for seconds delays neither event loop nor engine."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

_NICE = 5


@asynccontextmanager
async def job_process(module: str, job: dict[str, Any], longest: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m module` with low priority, and kill it at the end of the block.

    The process gets its job through a pipe, because other users can read a command line. It prints lines of at most
    `longest` bytes.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, limit=longest,
    )  # fmt: skip
    try:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.write(json.dumps(job).encode())
            await process.stdin.drain()
            process.stdin.close()
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
