"""`POST /slots/{slot}?action=save|restore|erase`: llama-server's way to keep the cache of a conversation.

The cache itself is in the folder of `--cache-dir` (`runtime/prefix_store.py`), which has every prefix already. A saved
slot is the list of its tokens, in `<cache-dir>/slots/<filename>`. Restoring reads the list; the pages return with the
next request that begins with these tokens.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from assay.engines.contract import PAGE
from assay.serve.api.schemas import Name, Schema
from assay.serve.api.server_state import HttpCall
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import HttpReply, json_reply
from assay.serve.pool.models import ServedModel
from assay.system import files

_FILENAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_FLUSH_S = 30.0  # longest wait for pages that are still being written


class SlotRequest(Schema):
    filename: Annotated[str, Field(max_length=128)] | None = Field(None, description="letters, digits, _ . -")
    model: Name | None = None


async def slot_action(call: HttpCall, request: SlotRequest) -> HttpReply:
    entry = call.state.models.find(request.model)
    text, action = call.path["slot"], call.query.get("action", "")
    slot = int(text) if re.fullmatch("[0-9]{1,4}", text) else -1
    if not 0 <= slot < call.state.limits.running:
        raise ApiError(
            "invalid_value", f"no slot {text!r:.20} (expected 0 to {call.state.limits.running - 1})", "id_slot"
        )
    if action == "erase":
        gone = call.state.slots.pop((entry.id, slot), ())
        return json_reply({"id_slot": slot, "n_erased": len(gone)})
    if action not in ("save", "restore"):
        raise ApiError("invalid_value", f"action: expected save, restore or erase (found {action!r:.20})", "action")
    if entry.options.cache_dir is None:
        raise ApiError("unsupported", "slots cannot be saved: start the server with --cache-dir DIR")
    if not request.filename or not _FILENAME.fullmatch(request.filename):
        raise ApiError("invalid_value", "filename: expected letters, digits, _ . - (at most 128)", "filename")
    path = Path(entry.options.cache_dir) / "slots" / request.filename
    began = time.monotonic()
    worker = await call.stack.enter_async_context(call.state.models.use(entry))
    store = worker.store
    if store is None:
        raise ApiError("unsupported", f"the model {entry.id} has no cache on disk")
    if action == "save":
        ids = call.state.slots.get((entry.id, slot), ())

        def save() -> int:
            store.folder.flush(_FLUSH_S)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            content = json.dumps({"model": entry.file.sha256, "tokens": ids}).encode()
            files.write(path, content)
            return len(content)

        size = await call.state.threads.run("disk", save)
        said = {"n_saved": len(ids), "n_written": size, "timings": {"save_ms": _ms(began)}}
    else:
        ids, size = await call.state.threads.run("disk", lambda: _read(path, entry))
        call.state.slots[entry.id, slot] = ids
        found = await call.state.threads.run("text", lambda: len(store.saved(ids)) * PAGE)
        said = {"n_restored": found, "n_read": size, "timings": {"restore_ms": _ms(began)}}
    return json_reply({"id_slot": slot, "filename": request.filename} | said)


def _read(path: Path, entry: ServedModel) -> tuple[tuple[int, ...], int]:
    """The tokens of a saved slot, and the bytes of its file. The file may have been changed by hand."""
    try:
        content = bytes(files.read_own(path))
        found: dict[str, Any] = json.loads(content)
        ids, n_vocab = found["tokens"], entry.model.hparams.n_vocab
        if found["model"] == entry.file.sha256 and all(type(i) is int and 0 <= i < n_vocab for i in ids):
            return tuple(ids), len(content)
    except OSError:
        raise ApiError("invalid_value", f"filename: no saved slot {path.name}", "filename") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise ApiError("invalid_value", f"filename: {path.name} is not a slot of the model {entry.id}", "filename")


def _ms(began: float) -> float:
    return round(1e3 * (time.monotonic() - began), 3)
