"""Plans of the pages of `assay serve --browser`: made by a separate process, one at a time, and kept on disk."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from assay.serve.api.job_process import job_process
from assay.serve.api_errors import ApiError
from assay.serve.limits import ServerLimits
from assay.serve.pool.models import ServedModel
from assay.serve.pool.threads import Gate

KEPT = 4  # plans on disk; the one that was made first is removed
RESULT = 1 << 16  # bytes of a line of the process
_MODULE = "assay.library.web_plan_process"


class BrowserPlans:
    """The plans of a server's models, each made once."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._turn = Gate("page", 1, 16)  # one plan is made at a time
        self._root: Path | None = None
        self._made: dict[tuple[Any, ...], asyncio.Task[Path]] = {}

    async def folder(self, entry: ServedModel) -> Path:
        """The folder with plan.json and packed.bin. A client that disconnects does not end the work for others."""
        key = (entry.id, entry.file.path, entry.created)
        task = self._made.get(key)
        if task is None:
            done = [other for other, made in self._made.items() if made.done()]
            for other in done[: max(0, len(self._made) + 1 - KEPT)]:
                self._remove(other, self._made[other])
            task = self._made[key] = asyncio.create_task(self._make(entry))
        try:
            return await asyncio.shield(task)
        except ApiError:  # the next request tries again
            self._remove(key, task)
            raise

    def _remove(self, key: tuple[Any, ...], task: asyncio.Task[Path]) -> None:
        if self._made.get(key) is task:
            del self._made[key]
        if not task.cancelled() and task.exception() is None:
            shutil.rmtree(task.result(), ignore_errors=True)

    async def _make(self, entry: ServedModel) -> Path:
        limits = self._limits
        if entry.adapters:
            raise ApiError(
                "invalid_value", f"{entry.id}: a page computes no adapters; choose the model itself", "model"
            )
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="assay-browser-"))
        folder = Path(tempfile.mkdtemp(dir=self._root))
        job = {
            "model": str(entry.file.path.absolute()), "folder": str(folder), "name": entry.id,
            "context": min(entry.n_ctx, limits.browser_context), "most_packed": limits.browser_packed,
            "template": entry.options.template, "arguments": entry.options.template_arguments,
        }  # fmt: skip
        line, good = b"", False
        try:
            async with self._turn, asyncio.timeout(limits.browser_s), job_process(_MODULE, job, RESULT) as process:
                assert process.stdout is not None
                while read := await process.stdout.readline():
                    line = read
                await process.wait()
            found = json.loads(line) if line.endswith(b"\n") else {"error": "the process that makes its plan died"}
            if "error" in found:
                message = str(found["error"]).replace(str(entry.file.path), entry.id)[:2000]
                raise ApiError("invalid_value", f"{entry.id} cannot run in a browser: {message}", "model")
            good = True
            return folder
        except TimeoutError:
            message = f"{entry.id}: the plan of its page took longer than {limits.browser_s:g} s"
            raise ApiError("deadline_exceeded", message) from None
        finally:
            if not good:
                shutil.rmtree(folder, ignore_errors=True)

    async def close(self) -> None:
        """End the process that makes a plan, and remove all plans."""
        for task in self._made.values():
            task.cancel()
        await asyncio.gather(*self._made.values(), return_exceptions=True)
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
